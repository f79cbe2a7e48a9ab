"""Small helpers, each in the file of its subject."""

from minisgl.utils.device import pick_device
from minisgl.utils.hf import (
    cached_load_hf_config,
    download_hf_weight,
    load_eos_token_ids,
    load_tokenizer,
)
from minisgl.utils.logger import init_logger
from minisgl.utils.misc import align_ceil, align_down, div_ceil, div_even
from minisgl.utils.registry import Registry
from minisgl.utils.torch_utils import resolve_dtype, torch_dtype

__all__ = [
    "Registry",
    "align_ceil",
    "align_down",
    "cached_load_hf_config",
    "div_ceil",
    "div_even",
    "download_hf_weight",
    "init_logger",
    "load_eos_token_ids",
    "load_tokenizer",
    "pick_device",
    "resolve_dtype",
    "torch_dtype",
]
