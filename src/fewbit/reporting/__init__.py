"""A report on quantized models: one HTML file with charts, which fetches nothing."""

from .measuring import Report, report

__all__ = ["Report", "report"]
