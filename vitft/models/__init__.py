"""Models and their files: Vision Transformer, timm models, checkpoints and pretrained weights."""
