"""Accuracy, intervals and calibration. Only `classification` and `targets` import torch."""
