"""The pictures by name."""

from __future__ import annotations

from collections.abc import Callable

from tools.drawing.canvas import Canvas

Say = Callable[[str, str], str]
"""Takes the English and the Chinese wording, returns that of the language."""

Scene = Callable[[Say], Canvas]
DIAGRAMS: dict[str, Scene] = {}


def diagram(name: str) -> Callable[[Scene], Scene]:
    """Register a scene; `name` is the file's name without .svg."""

    def add(scene: Scene) -> Scene:
        DIAGRAMS[name] = scene
        return scene

    return add


def draw(name: str, language: str) -> Canvas:
    """The picture in that language, `en` or `zh`.

    Raises:
        ValueError: no picture has that name.
        DrawingError: a text does not fit.
    """
    # Scenes register themselves when their files are imported.
    from tools.drawing import (  # noqa: F401
        scenes_beyond,
        scenes_compute,
        scenes_deploy,
        scenes_faster,
        scenes_hybrid,
        scenes_kernels,
        scenes_measured,
        scenes_parallel,
        scenes_quant,
        scenes_roof,
        scenes_schedule,
        scenes_serve,
        scenes_speculative,
        scenes_tiers,
    )

    if name not in DIAGRAMS:
        known = ", ".join(sorted(DIAGRAMS))
        raise ValueError(f"no diagram is called {name!r}; known: {known}")
    at = 0 if language == "en" else 1
    return DIAGRAMS[name](lambda *words: words[at])
