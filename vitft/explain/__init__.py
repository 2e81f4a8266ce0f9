"""Explanations of a model's predictions: attention, rollout and relevance per patch.

method         the methods and their options, checked without torch
attribution    attribution maps of a batch of images
heatmaps       heat maps over images and contact sheets, without torch
model          the model to explain, from a run or from pretrained weights
explainer      image files to pictures and arrays on disk
model_figures  figures of the weights: filters, positions, attention distances
"""
