"""What the films show of the engine: run it, and write down what happened.

python -m tools.videos record

Only what is the same on every machine is kept: steps, tokens, slots, never times.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path
from types import ModuleType

from tools.videos.film import EVENTS

ROOT = Path(__file__).resolve().parents[2]


def stage_file(chapter: str, name: str) -> ModuleType:
    """A helper that lies beside a chapter's main.py, as a module.

    Under its own name and from the path, so that processes it starts find it.
    """
    (path,) = ROOT.glob(f"stages/{chapter}-*/{name}.py")
    sys.path.insert(0, str(path.parent))
    sys.modules.pop(name, None)
    return importlib.import_module(name)


def record(name: str) -> str:
    """The text of a film's event file."""
    # They import torch and the engine, which drawing does not need.
    from tools.videos import record_device, record_host

    recorders = {
        "life": record_host.life,
        "batching": record_host.batching,
        "radix": record_host.radix,
        "overlap": record_device.overlap,
        "parallel": record_device.parallel,
        "graph": record_device.graph,
    }
    return _flat(json.dumps(recorders[name](), indent=1, ensure_ascii=False))


def _flat(text: str) -> str:
    """Lists and objects of plain values on a line each."""
    plain = r"([\[{])\s+([^\[\]{}]*?)\s+([\]}])"

    def joined(match: re.Match[str]) -> str:
        return match[1] + re.sub(r"\s*\n\s*", " ", match[2]) + match[3]

    return re.sub(plain, joined, text) + "\n"


def write(name: str) -> Path:
    """Record a film's events and store them."""
    EVENTS.mkdir(exist_ok=True)
    path = EVENTS / f"{name}.json"
    path.write_text(record(name), encoding="utf-8")
    return path
