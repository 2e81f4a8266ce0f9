"""Prediction: engines, postprocessing, output files, thresholds and evaluation."""
