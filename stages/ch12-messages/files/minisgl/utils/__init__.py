"""Small helpers, each in the file of its subject, loaded when it is asked for.

A process that only passes messages on must not pay for torch and transformers.
"""

from typing import TYPE_CHECKING

from minisgl.utils.lazy import lazy_names

if TYPE_CHECKING:
    from minisgl.utils.device import pick_device
    from minisgl.utils.hf import (
        cached_load_hf_config,
        download_hf_weight,
        load_eos_token_ids,
        load_tokenizer,
    )
    from minisgl.utils.logger import init_logger
    from minisgl.utils.misc import align_ceil, align_down, div_ceil, div_even
    from minisgl.utils.mp import (
        ZmqAsyncPullQueue,
        ZmqAsyncPushQueue,
        ZmqPubQueue,
        ZmqPullQueue,
        ZmqPushQueue,
        ZmqSubQueue,
    )
    from minisgl.utils.registry import Registry
    from minisgl.utils.torch_utils import resolve_dtype, torch_dtype

__all__ = [
    "Registry",
    "ZmqAsyncPullQueue",
    "ZmqAsyncPushQueue",
    "ZmqPubQueue",
    "ZmqPullQueue",
    "ZmqPushQueue",
    "ZmqSubQueue",
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

__getattr__ = lazy_names(
    __name__,
    {
        "device": ["pick_device"],
        "hf": [
            "cached_load_hf_config",
            "download_hf_weight",
            "load_eos_token_ids",
            "load_tokenizer",
        ],
        "logger": ["init_logger"],
        "misc": ["align_ceil", "align_down", "div_ceil", "div_even"],
        "mp": [name for name in __all__ if name.startswith("Zmq")],
        "registry": ["Registry"],
        "torch_utils": ["resolve_dtype", "torch_dtype"],
    },
)
