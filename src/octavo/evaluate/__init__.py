"""What a KV format costs in quality: measured, remembered, and asked for at the gate before 4-bit keys are used."""

from octavo.evaluate.evaluation import evaluate
from octavo.evaluate.report import ContextQuality, FormatReport, Recall, Report
from octavo.evaluate.text import Text, default_text, read_text

__all__ = [
    "ContextQuality",
    "FormatReport",
    "Recall",
    "Report",
    "Text",
    "default_text",
    "evaluate",
    "read_text",
]
