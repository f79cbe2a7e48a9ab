"""`python -m minisgl.benchmark`: how fast it is."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console

from minisgl.benchmark.report import Report
from minisgl.benchmark.shapes import SHAPES
from minisgl.benchmark.workload import WORKLOADS, Workload

PROGRAM = "python -m minisgl.benchmark"
app = typer.Typer(no_args_is_help=True, add_completion=False)
# Typer exports only this one of the errors that a command line can have.
_UsageError = cast("type[typer.BadParameter]", typer.BadParameter.__bases__[0])

Model = Annotated[str | None, typer.Option(help="A folder or a hub id.")]
Shape = Annotated[
    str | None,
    typer.Option(help=f"In its place, random weights: {', '.join(SHAPES)}."),
]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16, float16.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="A setting, as page_size=16; repeatable."),
]
Kind = Annotated[str, typer.Option(help=f"{' or '.join(WORKLOADS)}.")]
Requests = Annotated[int | None, typer.Option(help="How many.")]
Shortest = Annotated[int | None, typer.Option(help="Tokens, at least.")]
Longest = Annotated[int | None, typer.Option(help="Tokens, at most.")]
Peer = Annotated[
    list[str] | None,
    typer.Option(help="static, continuous or one-by-one; repeatable."),
]
Rounds = Annotated[int, typer.Option(min=1, help="Each with new prompts.")]
Out = Annotated[
    list[Path] | None,
    typer.Option("--out", help="Write it here: .json or .md; repeatable."),
]


def say(text: str) -> None:
    """How far it is."""
    print(text, file=sys.stderr, flush=True)


def finish(report: Report, paths: list[Path] | None) -> None:
    """Print and write."""
    report.show(Console())
    for path in paths or ():
        report.write(path)


def find_workload(name: str, **changes: Any) -> Workload:
    """A known workload; changes that are None change nothing.

    Raises:
        ValueError: it is not known, or a change is out of range.
    """
    if name not in WORKLOADS:
        known = ", ".join(WORKLOADS)
        raise ValueError(f"no workload is called {name!r}; known: {known}")
    wanted = {k: v for k, v in changes.items() if v is not None}
    return replace(WORKLOADS[name], **wanted)


@app.callback()
def _all() -> None:
    """Measure our engine offline, or what each of its parts is worth."""


@app.command()
def offline(
    model: Model = None,
    shape: Shape = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    settings: Set = None,
    workload: Kind = "gpu",
    requests: Requests = None,
    shortest: Shortest = None,
    longest: Longest = None,
    peer: Peer = None,
    rounds: Rounds = 3,
    out: Out = None,
) -> None:
    """Tokens a second with all requests there at once."""
    from minisgl.benchmark.offline import measure_offline
    from minisgl.benchmark.subject import open_subject, parse_settings

    work = find_workload(
        workload, requests=requests, shortest=shortest, longest=longest
    )
    chosen: dict[str, Any] = {"dtype": dtype, "device": device}
    chosen["settings"] = parse_settings(settings or ())
    with open_subject(model, shape, **chosen) as subject:
        report = measure_offline(subject, work, peer or (), rounds, say)
    finish(report, out)


def main() -> None:
    """Run a command; what is wrong with its input is one line."""
    command = typer.main.get_command(app)
    try:
        command.main(prog_name=PROGRAM, standalone_mode=False)
    except _UsageError as error:
        raise SystemExit(f"error: {error.format_message()}") from None
    except (FileNotFoundError, ValueError) as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
