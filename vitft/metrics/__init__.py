"""Accuracy, confidence intervals and calibration. Only `classification` imports torch."""
