"""How much memory loading takes, in two ways.

dict: all tensors in a dict, converted, then merged into a second dict.
stream: one weight at a time, as minisgl.models.load_model_weight does.

Counts anonymous memory, which the kernel cannot take back; pages mapped from the
weight files can be dropped and read again. Each way runs in a process of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:] = [
    p for p in sys.path if Path(p or ".").resolve() != ROOT / "tools"
]
sys.path.insert(0, str(ROOT))

import typer  # noqa: E402

from tools.stagekit import measured  # noqa: E402

STATUS = Path("/proc/self/status")
WAYS = ("dict", "stream")
MB = 1e6


def anonymous_bytes() -> int | None:
    """RssAnon of this process; None where the system does not tell."""
    if not STATUS.exists():
        return None
    for line in STATUS.read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return None


class Peak(threading.Thread):
    """Samples anonymous memory every millisecond while it runs."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.before = self.highest = anonymous_bytes() or 0
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.001):
            self.sample()

    def sample(self) -> None:
        self.highest = max(self.highest, anonymous_bytes() or 0)

    def stop(self) -> int:
        """Growth of the peak over the start, in bytes."""
        self.done.set()
        self.join()
        self.sample()
        return self.highest - self.before


def measure(way: str, folder: Path, dtype_name: str) -> dict[str, float]:
    """Load in this process; MB of weights and of growth, and seconds."""
    import torch

    from minisgl.models import ModelConfig, create_model, load_model_weight
    from minisgl.utils import cached_load_hf_config, resolve_dtype, torch_dtype

    hf_config = cached_load_hf_config(str(folder))
    dtype = resolve_dtype(dtype_name, hf_config)
    with torch.device("meta"), torch_dtype(dtype):
        model = create_model(ModelConfig.from_hf(hf_config))

    def stream() -> None:
        load_model_weight(model, str(folder), torch.device("cpu"), dtype)

    def whole_dict() -> None:
        model.load_state_dict(
            _load_as_dict(folder, dtype, set(model.state_dict()))
        )

    load: dict[str, Callable[[], None]] = {"stream": stream, "dict": whole_dict}
    peak = Peak()
    peak.start()
    start = time.perf_counter()
    load[way]()
    seconds = time.perf_counter() - start
    growth = peak.stop()
    weights = sum(weight.nbytes for weight in model.state_dict().values())
    return {
        "weights": weights / MB,
        "growth": growth / MB,
        "ratio": growth / weights,
        "seconds": seconds,
    }


def _load_as_dict(folder: Path, dtype: Any, wanted: set[str]) -> dict[str, Any]:
    """What step 0 does, then one more dict with the merged weights."""
    import torch
    from safetensors.torch import load_file

    from minisgl.models.weight import _get_merge_info

    shards = [load_file(file) for file in sorted(folder.glob("*.safetensors"))]
    stored = {
        name: w.to(dtype) for shard in shards for name, w in shard.items()
    }
    groups = dict(_get_merge_info(name) for name in stored)
    return {
        name: torch.cat([stored[part] for part in parts])
        for name, parts in groups.items()
        if name in wanted
    }


def main(
    model: Annotated[str, typer.Option(help="Name, folder or hub id.")] = (
        "smollm2-135m"
    ),
    dtype: Annotated[
        str, typer.Option(help="auto, float32 or bfloat16.")
    ] = "auto",
    as_json: Annotated[bool, typer.Option("--json")] = False,
    way: Annotated[
        str | None, typer.Option(help="Only this one: stream, dict.")
    ] = (None),
    here: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Print the growth of anonymous memory while a model is loaded."""
    from tools.models import model_path
    from tools.zoo.places import ModelError

    if anonymous_bytes() is None:
        typer.echo("skipped: this system has no RssAnon in /proc/self/status")
        return
    if way is not None and way not in WAYS:
        raise SystemExit(f"error: no way {way!r}; known: {', '.join(WAYS)}")
    try:
        folder = model_path(model)
    except ModelError as error:
        raise SystemExit(f"error: {error}") from None
    if here:
        print(json.dumps(measure(way or "stream", folder, dtype)))
        return
    rows = {w: _in_a_child(w, folder, dtype) for w in ([way] if way else WAYS)}
    print(json.dumps(rows)) if as_json else _show(rows, folder.name, dtype)


def _in_a_child(way: str, folder: Path, dtype: str) -> dict[str, float]:
    command = [sys.executable, __file__, "--here", "--way", way]
    command += ["--model", str(folder), "--dtype", dtype]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no reason given"]
        raise SystemExit(f"error: {lines[-1]}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def _show(rows: dict[str, dict[str, float]], name: str, dtype: str) -> None:
    weights = next(iter(rows.values()))["weights"]
    print(f"{name} with --dtype {dtype}: {weights:,.1f} MB of weights")
    for way, row in rows.items():
        grown = measured(row["growth"], "MB")
        ratio = measured(row["ratio"], "times the weights", 2)
        print(f"{way:6}  {grown:>11} more memory, {ratio}, ", end="")
        print(measured(row["seconds"], "s"))


if __name__ == "__main__":
    typer.run(main)
