"""Public names of `vitft.models`, imported on first use."""

from .card import AnyConfig as AnyConfig
from .card import Card as Card
from .checkpoint import build_model as build_model
from .checkpoint import load_checkpoint as load_checkpoint
from .checkpoint import save_checkpoint as save_checkpoint
from .freeze import freeze_model as freeze_model
from .freeze import frozen_blocks as frozen_blocks
from .initial import fitted as fitted
from .pretrained.catalog import CatalogEntry as CatalogEntry
from .pretrained.fetch import Fetched as Fetched
from .pretrained.fetch import sha256_of as sha256_of
from .pretrained.load import load_backbone as load_backbone
from .pretrained.recommended import Recommendation as Recommendation
from .registry import create_model as create_model
from .timm_config import TimmConfig as TimmConfig
from .timm_model import TimmModel as TimmModel
from .vit import VisionTransformer as VisionTransformer
from .vit_config import ViTConfig as ViTConfig
