"""Six short films about the engine: render them, look at stills of them.

python -m tools.videos render
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Annotated

import typer

from tools.videos import checks, embed, encode, recorders, subtitles, voice
from tools.videos.film import duration, load
from tools.videos.narration import NAMES
from tools.videos.preview import sheet, still
from tools.videos.theme import FilmError

ROOT = Path(__file__).resolve().parents[2]
FILMS = ROOT / ".cache" / "films"
app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__)
Names = Annotated[list[str] | None, typer.Argument(help="Films; all of them.")]


def chosen(names: list[str] | None) -> list[str]:
    """The films asked for.

    Raises:
        FilmError: there is none of that name.
    """
    for name in names or []:
        if name not in NAMES:
            known = ", ".join(NAMES)
            raise FilmError(f"no film is called {name!r}; known: {known}")
    return names or [*NAMES]


def render_one(name: str, speaker: str, folder: Path) -> str:
    """Make the files of a film and measure them; returns a line about it.

    Raises:
        FilmError: a program is missing, or a check fails.
    """
    start, film = time.perf_counter(), load(name)
    texts = [line.en for line in film.lines]
    parts = [*map(voice.read, voice.speak(texts, speaker, folder / "voice"))]
    cues = film.cues([*map(voice.seconds, parts)])
    track = folder / f"{name}.wav"
    voice.write_track(parts, cues, track)
    subtitles.write(film, cues, folder)
    target = folder / f"{name}.mp4"
    frames, painted = encode.encode(film, cues, track, target)
    still(film, film.poster).save(folder / f"{name}.jpg", quality=88)
    track.unlink()
    if wrong := checks.check(film, folder):
        raise FilmError("\n".join(wrong))
    size = target.stat().st_size / 2**20
    return (
        f"{name:9}{duration(cues):6.1f} s {size:5.1f} MiB  {len(cues)} sentences  "
        f"{painted} of {frames} frames painted in {time.perf_counter() - start:.0f} s"
    )


@app.command()
def render(
    names: Names = None,
    speaker: Annotated[
        str,
        typer.Option(
            "--voice", help="espeak, or edge: better, over the network."
        ),
    ] = "espeak",
    preview: Annotated[
        bool, typer.Option("--preview", help="Sheets of stills, no films.")
    ] = False,
    jobs: Annotated[int, typer.Option(help="Films at a time.")] = 2,
) -> None:
    """Render films into .cache/films and check them."""
    if speaker not in voice.VOICES:
        raise FilmError(
            f"no voice {speaker!r}; known: {', '.join(voice.VOICES)}"
        )
    FILMS.mkdir(parents=True, exist_ok=True)
    if preview:
        for name in chosen(names):
            sheet(load(name), FILMS / f"{name}.png")
            typer.echo(f"{name}: .cache/films/{name}.png")
        return
    with ProcessPoolExecutor(jobs) as pool:
        runs = [
            pool.submit(render_one, name, speaker, FILMS)
            for name in chosen(names)
        ]
        for run in as_completed(runs):
            typer.echo(run.result())


@app.command()
def check(names: Names = None) -> None:
    """Measure the films that are there."""
    wrong = []
    for name in chosen(names):
        wrong += checks.check(load(name), FILMS)
    if wrong:
        raise FilmError("\n".join(wrong))
    typer.echo(
        f"{len(chosen(names))} films: length, voice, subtitles are right"
    )


@app.command()
def record(names: Names = None) -> None:
    """Run the engine and write down what the films show of it."""
    os.environ.setdefault("LOG_LEVEL", "WARNING")
    for name in chosen(names):
        path = recorders.write(name)
        typer.echo(f"{name}: {path.relative_to(ROOT)}")


@app.command(name="embed")
def embed_films(
    site: Annotated[Path, typer.Argument(help="The built book.")],
) -> None:
    """Put the rendered films into a built book."""
    shown = embed.embed(site, FILMS)
    typer.echo(
        f"films: {', '.join(shown) or 'none are rendered (make videos)'}"
    )


def main() -> None:
    """Run, and say in a line what is wrong."""
    try:
        app()
    except FilmError as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
