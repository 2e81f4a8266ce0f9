"""Public names of `vitft.models`, imported on first use."""

from .card import AnyConfig as AnyConfig
from .checkpoint import build_model as build_model
from .checkpoint import load_checkpoint as load_checkpoint
from .freeze import freeze_model as freeze_model
from .registry import create_model as create_model
from .timm_config import TimmConfig as TimmConfig
from .timm_model import TimmModel as TimmModel
from .vit import VisionTransformer as VisionTransformer
from .vit_config import ViTConfig as ViTConfig
