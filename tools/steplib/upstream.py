"""Facts about upstream (mini-sglang at a pinned commit): names, signatures, lines.

``tools/upstream.json`` holds them and is the one place that names the commit;
``tools/upstream_reasons.toml`` says why something of upstream is missing here.
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

TOOLS = Path(__file__).resolve().parents[1]
FACTS = TOOLS / "upstream.json"
REASONS = TOOLS / "upstream_reasons.toml"


@dataclass(frozen=True)
class Symbol:
    """A class, function or method of upstream, or a whole module."""

    path: str  # inside minisgl/, as our own paths are
    name: str  # empty for a module
    signature: str  # `def f(x: int) -> int`, `class A(B)`; empty for a module
    lines: tuple[int, int]


@lru_cache(maxsize=4)
def facts(path: Path = FACTS) -> dict[str, Any]:
    """The parsed file, module paths without ``minisgl/``."""
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    modules = data["modules"].items()
    data["modules"] = {
        name.removeprefix("minisgl/"): module for name, module in modules
    }
    return data


def modules() -> dict[str, Any]:
    """Module path inside ``minisgl/`` -> what upstream defines there."""
    found: dict[str, Any] = facts()["modules"]
    return found


def find(path: str, name: str = "") -> Symbol:
    """Look up ``Class``, ``Class.method``, ``function`` or, without a name, a module.

    Raises:
        ValueError: upstream has no such module or symbol.
    """
    path = path.removeprefix("minisgl/")
    module = modules().get(path)
    if module is None:
        raise ValueError(f"{path}: upstream has no such module")
    if not name:
        return Symbol(path, "", "", (1, module["lines"]))
    head, _, method = name.partition(".")
    if method:
        fact = module["classes"].get(head, {}).get("methods", {}).get(method)
        text = f"def {method}{fact['signature']}" if fact else ""
    elif fact := module["classes"].get(head):
        bases = ", ".join(fact["bases"])
        text = f"class {head}({bases})" if bases else f"class {head}"
    else:
        fact = module["functions"].get(head)
        text = f"def {head}{fact['signature']}" if fact else ""
    if fact is None:
        raise ValueError(f"{path}::{name}: upstream has no such symbol")
    return Symbol(path, name, text, (fact["lines"][0], fact["lines"][1]))


def url(symbol: Symbol) -> str:
    """Link to the pinned commit, with the line span for anything but a module."""
    data = facts()
    base = f"https://github.com/{data['repository']}/blob/{data['commit']}"
    link = f"{base}/python/minisgl/{symbol.path}"
    return link + (
        f"#L{symbol.lines[0]}-L{symbol.lines[1]}" if symbol.name else ""
    )


def reasons(path: Path = REASONS) -> dict[str, dict[str, str]]:
    """Tables ``missing``, ``changed`` (target -> reason) and ``zh`` (translations)."""
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    return {name: data.get(name, {}) for name in ("missing", "changed", "zh")}
