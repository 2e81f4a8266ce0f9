"""Public names of `vitft.explain`, imported on first use."""

from .attribution import attention_maps as attention_maps
from .attribution import discard_weakest as discard_weakest
from .attribution import explain as explain
from .attribution import relevance as relevance
from .attribution import relevance_map as relevance_map
from .attribution import rollout as rollout
from .attribution import trace_attention as trace_attention
from .explainer import load_run_model as load_run_model
from .explainer import safe_stem as safe_stem
from .heatmaps import Method as Method
from .heatmaps import overlay as overlay
from .heatmaps import png_bytes as png_bytes
from .model_figures import attention_distance as attention_distance
from .model_figures import patch_filters as patch_filters
from .model_figures import patch_tokens as patch_tokens
from .model_figures import position_similarity as position_similarity
