"""Rows: one for every request that is running."""

from __future__ import annotations

import torch


class TableManager:
    """Hands out rows of the page table, and of the token pool beside it.

    page_table: int32 [rows, length], the KV slot of every token.
    token_pool: int32 [rows, length], the token itself; on the device, so that
        a sampled token is the next input without a trip through the host.
    """

    def __init__(self, max_running_reqs: int, page_table: torch.Tensor) -> None:
        self._free = list(range(max_running_reqs))
        self.page_table = page_table
        self.token_pool = torch.zeros_like(page_table)

    @property
    def available_size(self) -> int:
        """Rows that are free."""
        return len(self._free)

    def allocate(self) -> int:
        """A free row; ask `available_size` first."""
        return self._free.pop()

    def free(self, slot: int) -> None:
        """Give a row back."""
        self._free.append(slot)
