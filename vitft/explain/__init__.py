"""Explanations of a model's predictions: attention, rollout and relevance per patch.

attribution    attribution maps of a batch of images
heatmaps       methods and their options, heat maps and contact sheets, without torch
explainer      loading of the model, and explanation of image files as heat maps and arrays
model_figures  figures of a model (filters, position embeddings, attention distances), and of how
               it turns an image into tokens
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
