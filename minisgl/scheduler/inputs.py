"""The tensors of a step, from the counters of its requests."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import torch

from minisgl.core import Batch
from minisgl.utils.counters import Counters, Ints
from minisgl.utils.device import to_device

Indice2D: TypeAlias = tuple[torch.Tensor, torch.Tensor]
"""Rows and columns, int64 [n] each, of the page table or the token pool."""


def _make_input_tuple(counters: Counters) -> tuple[Ints, Ints]:
    """Where the tokens to compute are: from cached_len to device_len."""
    lengths = counters.extend_len
    first = lengths.cumsum() - lengths
    shift = (counters.cached_len - first).repeat(lengths)
    rows = counters.table_idx.repeat(lengths)
    return rows, np.arange(len(shift)) + shift


def _make_write_tuple(batch: Batch, counters: Counters) -> tuple[Ints, Ints]:
    """Where the sampled tokens go: right after what the request has.

    A request that will not decode after this step has no place for one; its
    token goes to the spare last column, which nobody reads.
    """
    size = batch.size
    goes_on = np.array([req.can_decode for req in batch.reqs])
    columns = np.where(goes_on, counters.device_len[:size], -1)
    return counters.table_idx[:size], columns


def make_inputs(
    batch: Batch, page_table: torch.Tensor
) -> tuple[Indice2D, Indice2D]:
    """Fill in positions and out_loc; return where tokens come from and go.

    The pages of the batch are allocated, its requests not yet moved on. What
    is padded has places to read from; its tokens go nowhere.
    """
    counters = Counters.of(batch.padded_reqs)
    come = _make_input_tuple(counters)
    go = _make_write_tuple(batch, counters)
    # Four copies to the device would cost the host four times as much.
    packed = torch.from_numpy(np.concatenate([*come, *go]))
    sizes = [len(part) for part in (*come, *go)]
    moved = to_device(packed, torch.int64, page_table.device)
    rows, columns, to_rows, to_columns = moved.split(sizes)
    batch.positions = columns
    batch.out_loc = page_table[rows, columns]
    return (rows, columns), (to_rows, to_columns)
