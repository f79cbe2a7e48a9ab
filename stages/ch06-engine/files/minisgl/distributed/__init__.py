"""The ranks of a tensor-parallel engine."""

from minisgl.distributed.info import DistributedInfo

__all__ = ["DistributedInfo"]
