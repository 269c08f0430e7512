"""Octavo and its peers, each as an engine that can be set up and asked to measure: one file per engine."""
