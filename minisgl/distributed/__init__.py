"""The ranks of a tensor-parallel engine.

Whoever only says which rank it is does not load torch.
"""

from typing import TYPE_CHECKING

from minisgl.distributed.info import (
    DistributedInfo,
    get_tp_info,
    set_tp_info,
    try_get_tp_info,
)
from minisgl.utils.lazy import lazy_names

if TYPE_CHECKING:
    from minisgl.distributed.impl import (
        DistributedCommunicator,
        destroy_distributed,
    )

__all__ = [
    "DistributedCommunicator",
    "DistributedInfo",
    "destroy_distributed",
    "get_tp_info",
    "set_tp_info",
    "try_get_tp_info",
]

__getattr__ = lazy_names(
    __name__, {"impl": ["DistributedCommunicator", "destroy_distributed"]}
)
