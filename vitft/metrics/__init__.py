"""Accuracy, confidence intervals and calibration. Does not import torch."""
