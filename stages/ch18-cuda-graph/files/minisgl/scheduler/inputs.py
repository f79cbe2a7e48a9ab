"""The tensors of a step, from the counters of its requests."""

from __future__ import annotations

from typing import TypeAlias

import torch

from minisgl.core import Batch
from minisgl.utils.device import to_device

Indice2D: TypeAlias = tuple[torch.Tensor, torch.Tensor]
"""Rows and columns, int64 [n] each, of the page table or the token pool."""


def _make_input_tuple(batch: Batch, device: torch.device) -> Indice2D:
    """Where the tokens to compute are: from cached_len to device_len."""
    reqs = batch.padded_reqs
    lengths = torch.tensor([req.extend_len for req in reqs])
    starts = torch.tensor([req.cached_len for req in reqs])
    rows = torch.tensor([req.table_idx for req in reqs])
    first = lengths.cumsum(0) - lengths
    shift = (starts - first).repeat_interleave(lengths)
    columns = torch.arange(len(shift)) + shift
    rows = rows.repeat_interleave(lengths)
    return (
        to_device(rows, torch.int64, device),
        to_device(columns, torch.int64, device),
    )


def _make_write_tuple(batch: Batch, device: torch.device) -> Indice2D:
    """Where the sampled tokens go: right after what the request has.

    A request that will not decode after this step has no place for one; its
    token goes to the spare last column, which nobody reads.
    """
    rows = [req.table_idx for req in batch.reqs]
    columns = [req.device_len if req.can_decode else -1 for req in batch.reqs]
    return (
        to_device(rows, torch.int64, device),
        to_device(columns, torch.int64, device),
    )


def make_inputs(
    batch: Batch, page_table: torch.Tensor
) -> tuple[Indice2D, Indice2D]:
    """Fill in positions and out_loc; return where tokens come from and go.

    The pages of the batch are allocated, its requests not yet moved on. What
    is padded has places to read from; its tokens go nowhere.
    """
    device = page_table.device
    input_tuple = _make_input_tuple(batch, device)
    batch.positions = input_tuple[1]
    batch.out_loc = page_table[input_tuple]
    return input_tuple, _make_write_tuple(batch, device)
