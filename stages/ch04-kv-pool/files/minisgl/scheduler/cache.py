"""Pages for requests, from a pool that only ever shrinks."""

from __future__ import annotations

import torch

from minisgl.core import Req
from minisgl.utils import div_ceil


class CacheManager:
    """A bump allocator: page after page, and none comes back.

    page_table: int32 [rows, length], filled here with KV slots.
    """

    def __init__(
        self, num_pages: int, page_size: int, page_table: torch.Tensor
    ) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self.page_table = page_table
        self._next_page = 0

    @property
    def available_size(self) -> int:
        """Tokens for which there are still pages."""
        return (self.num_pages - self._next_page) * self.page_size

    def allocate_paged(self, reqs: list[Req]) -> None:
        """Give each request pages for the tokens it is about to compute.

        The last page of a request is filled up before it gets another.

        Raises:
            RuntimeError: the pool has too few pages left.
        """
        for req in reqs:
            held = div_ceil(req.cached_len, self.page_size)
            needed = div_ceil(req.device_len, self.page_size) - held
            if needed > 0:
                first = held * self.page_size
                slots = self._page_to_token(self._allocate(needed))
                row = self.page_table[req.table_idx]
                row[first : first + len(slots)] = slots

    def _allocate(self, needed_pages: int) -> torch.Tensor:
        left = self.num_pages - self._next_page
        if needed_pages > left:
            raise RuntimeError(f"{needed_pages} pages wanted, {left} are left")
        first = self._next_page
        self._next_page += needed_pages
        return torch.arange(first, self._next_page, dtype=torch.int32)

    def _page_to_token(self, pages: torch.Tensor) -> torch.Tensor:
        """The slots of whole pages: [n] -> [n * page_size]."""
        offsets = torch.arange(self.page_size, dtype=torch.int32)
        return (pages.unsqueeze(1) * self.page_size + offsets).flatten()
