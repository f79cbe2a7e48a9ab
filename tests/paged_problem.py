"""Attention over shuffled pages with random numbers, and what must come out."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

Span = tuple[int, int]
"""A request: (cached, all) tokens. The difference is new and has queries."""


@dataclass
class Problem:
    """Requests of `spans`, every one with pages from a seeded permutation.

    Pages that nobody owns, and places past the end of a request, hold `garbage`.
    """

    spans: Sequence[Span]
    heads: int = 4
    kv_heads: int = 2
    dim: int = 64
    page_size: int = 4
    dtype: torch.dtype = torch.float32
    device: torch.device | str = "cpu"
    garbage: float = 100.0

    def __post_init__(self):
        rng = torch.Generator().manual_seed(len(self.spans) + self.page_size)
        size = self.page_size
        self.lengths = torch.tensor([total for _, total in self.spans])
        self.new = torch.tensor([total - old for old, total in self.spans])
        self.counts = (self.lengths + size - 1) // size
        pages = int(self.counts.sum()) + 3
        self.pages = torch.randperm(pages, generator=rng)[:-3].split(
            self.counts.tolist()
        )
        shape = (pages, size, self.kv_heads, self.dim)
        caches = torch.full((2, *shape), self.garbage)
        for taken, length in zip(
            self.pages, self.lengths.tolist(), strict=True
        ):
            own = torch.randn(2, length, self.kv_heads, self.dim, generator=rng)
            flat = caches[:, taken].flatten(1, 2)
            flat[:, :length] = own
            caches[:, taken] = flat.view(2, len(taken), *shape[1:])
        total = int(self.new.sum())
        q = torch.randn(total, self.heads, self.dim, generator=rng)
        self.q = q.to(self.device, self.dtype)
        self.k_cache, self.v_cache = caches.to(self.device, self.dtype)

    def on_device(self, x: torch.Tensor) -> torch.Tensor:
        return x.int().to(self.device)

    def cumulated(self, counts: torch.Tensor) -> torch.Tensor:
        """int32 [B + 1] on the host."""
        return torch.nn.functional.pad(counts.cumsum(0), (1, 0)).int()

    @property
    def indices(self) -> torch.Tensor:
        """Pages of all requests in turn."""
        return self.on_device(torch.cat(self.pages))

    @property
    def last_page_len(self) -> torch.Tensor:
        return (self.lengths - (self.counts - 1) * self.page_size).int()

    def table(self, width: int | None = None) -> torch.Tensor:
        """A row of pages for each request; other requests' pages past its end."""
        width = width or int(self.counts.max())
        stale = int(self.pages[-1][0])
        rows = [
            torch.nn.functional.pad(p, (0, width - len(p)), value=stale)
            for p in self.pages
        ]
        return self.on_device(torch.stack(rows))

    def expected(self) -> torch.Tensor:
        """Softmax attention written out in float64, on the host."""
        group, size = self.heads // self.kv_heads, self.page_size
        q, k_cache, v_cache = (
            x.cpu().double() for x in (self.q, self.k_cache, self.v_cache)
        )
        found, row = [], 0
        for (cached, total), taken in zip(self.spans, self.pages, strict=True):
            assert len(taken) * size >= total
            k, v = (
                c[taken].flatten(0, 1)[:total].repeat_interleave(group, dim=1)
                for c in (k_cache, v_cache)
            )
            for end in range(cached + 1, total + 1):
                scores = torch.einsum("hd,mhd->hm", q[row], k[:end])
                share = (scores / self.dim**0.5).softmax(-1)
                found.append(torch.einsum("hm,mhd->hd", share, v[:end]))
                row += 1
        return torch.stack(found)
