"""A radix tree splits and loses leaves; then what it saves five workloads."""

import sys
from pathlib import Path
from typing import Literal

sys.path[:0] = [str(Path(__file__).resolve().parents[i]) for i in (2, 0)]

import torch
import typer
from workloads import WORKLOADS, Server, first_token

from minisgl.core import Context, set_global_ctx
from minisgl.kvcache.radix_cache import RadixPrefixCache, RadixTreeNode
from tools.stagekit import measured


def draw(node: RadixTreeNode, depth: int = 0) -> None:
    for child in node.children.values():
        name = "  " * depth + "".join(map(chr, child._key))
        locked = [" locked"] if child.ref_count else []
        print(f"    {name:12} slots", *child.value.tolist(), *locked)
        draw(child, depth + 1)


def tree() -> None:
    """A letter is a token, and the nth letter inserted is in slot n."""
    set_global_ctx(Context(page_size=1))
    cache, slots = RadixPrefixCache(torch.device("cpu")), torch.arange(18).int()
    for text, at in ((b"abcdefg", 0), (b"abcdxy", 7), (b"abq", 13)):
        own = slots[at : at + len(text)]
        known, handle = cache.insert_prefix(torch.tensor([*text]).int(), own)
        print(
            f"insert {text.decode()}: {known} known, {len(text) - known} kept"
        )
        draw(cache.root_node)
    cache.lock_handle(handle)
    print("lock abq, evict 4: slots", *cache.evict(4).tolist())
    draw(cache.root_node)


@torch.inference_mode()
def main(
    model: str = "qwen3-tiny", device: Literal["cpu", "cuda"] = "cpu"
) -> None:
    """Draw a tree, then serve each workload without and with the radix cache."""
    tree()
    print(f"\n{'prefill':32}  tokens  computed  reused  naive and radix")
    for name, play in WORKLOADS.items():
        servers = [Server(model, kind, device) for kind in ("naive", "radix")]
        for server in servers:
            play(server)
        naive, radix = servers
        row = f"{name:32}{radix.asked:8,}{radix.computed:10,}"
        row += f"{1 - radix.computed / radix.asked:8.0%} "
        print(
            row, *(measured(1000 * server.seconds, "ms") for server in servers)
        )
        assert naive.answers == radix.answers, "the cache changed an answer"
    pair = first_token(Server(model, "radix", device))
    cold, hit = (measured(1000 * seconds, "ms") for seconds in pair)
    print(f"\nfirst token of 528: {cold}, with 512 of them known: {hit}")


if __name__ == "__main__":
    typer.run(main)
