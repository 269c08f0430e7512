"""How tools are shown to a model, what it writes when it calls one, and what holds it to that. One file per format."""
