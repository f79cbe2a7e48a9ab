"""Small helpers, each in the file of its subject."""

from minisgl.utils.device import pick_device
from minisgl.utils.misc import align_ceil, align_down, div_ceil, div_even

__all__ = [
    "align_ceil",
    "align_down",
    "div_ceil",
    "div_even",
    "pick_device",
]
