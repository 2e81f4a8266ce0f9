"""Public names of `vitft.models`, imported on first use."""

from .card import AnyConfig as AnyConfig
from .card import Card as Card
from .card import parse_card as parse_card
from .checkpoint import build_model as build_model
from .checkpoint import facts_of as facts_of
from .checkpoint import load_checkpoint as load_checkpoint
from .checkpoint import save_checkpoint as save_checkpoint
from .find import find_model as find_model
from .freeze import freeze_model as freeze_model
from .freeze import frozen_blocks as frozen_blocks
from .initial import fitted as fitted
from .pretrained.catalog import CatalogEntry as CatalogEntry
from .pretrained.fetch import Fetched as Fetched
from .pretrained.fetch import sha256_of as sha256_of
from .pretrained.load import load_backbone as load_backbone
from .pretrained.read import one_model as one_model
from .pretrained.recommended import Recommendation as Recommendation
from .registry import create_model as create_model
from .shapes import vit_shapes as vit_shapes
from .timm_config import TimmConfig as TimmConfig
from .timm_model import TimmModel as TimmModel
from .vit import VisionTransformer as VisionTransformer
from .vit_config import ViTConfig as ViTConfig
