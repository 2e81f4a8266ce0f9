"""Models and their files: the Vision Transformer, timm models, checkpoints, pretrained weights."""
