"""An engine that notes where the tokens of its prompts come from."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from minisgl.kvcache.hiradix_cache import HiRadixPrefixCache
from minisgl.llm import LLM


class Counts(NamedTuple):
    """Tokens of prompts by where their keys and values were, and copies."""

    computed: int
    device: int
    host: int
    written: int

    def __str__(self) -> str:
        return " ".join(f"{number:>9,}" for number in self)


class NotedLLM(LLM):
    """Counts the tokens of prompts, and those written to the host."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        self._asked = self._cached = self._written = 0
        super().__init__(*args, **settings)
        cache = self.cache_manager.prefix_cache
        if isinstance(cache, HiRadixPrefixCache):
            write = cache._transfers.write

            def noted(pages: torch.Tensor, on_host: torch.Tensor) -> Any:
                self._written += len(pages) * self.config.page_size
                return write(pages, on_host)

            cache._transfers.write = noted  # type: ignore[method-assign]

    def offline_send_result(self, reply: list[Any]) -> None:
        for msg in reply:
            self._asked += msg.prompt_tokens or 0
            self._cached += msg.cached_tokens or 0
        super().offline_send_result(reply)

    def counts(self) -> Counts:
        """Of all requests so far."""
        cache = self.cache_manager.prefix_cache
        hier = isinstance(cache, HiRadixPrefixCache)
        loaded = cache.loaded_tokens if hier else 0
        return Counts(
            self._asked - self._cached,
            self._cached - loaded,
            loaded,
            self._written,
        )

    def tiers(self) -> list[str]:
        """The nodes of the tree: tokens, and where they are."""
        cache, lines = self.cache_manager.prefix_cache, []
        assert isinstance(cache, HiRadixPrefixCache)
        for node in sorted(cache._nodes(), key=lambda node: node.timestamp):
            places = {"device": len(node.value), "host": len(node.host)}
            found = " and ".join(name for name, size in places.items() if size)
            lines.append(f"  {node.length:>4} tokens on {found}")
        return lines
