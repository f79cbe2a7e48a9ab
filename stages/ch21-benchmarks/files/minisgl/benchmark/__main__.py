"""`python -m minisgl.benchmark`: how fast it is."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console

from minisgl.benchmark.report import Report, check_name
from minisgl.benchmark.shapes import SHAPES
from minisgl.benchmark.workload import QUEUES, WORKLOADS, Workload

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
Kind = Annotated[
    str, typer.Option(help=f"{' or '.join(WORKLOADS)}: a size of the load.")
]
Requests = Annotated[int | None, typer.Option(help="How many.")]
Shortest = Annotated[int | None, typer.Option(help="Tokens, at least.")]
Longest = Annotated[int | None, typer.Option(help="Tokens, at most.")]
Peer = Annotated[
    list[str] | None,
    typer.Option(help="static, continuous or one-by-one; repeatable."),
]
Shared = Annotated[
    int | None, typer.Option(help="Tokens with which every prompt begins.")
]
Long = Annotated[
    int | None, typer.Option(help="Further tokens of every eighth prompt.")
]
Rounds = Annotated[int, typer.Option(min=1, help="Each with new prompts.")]
Out = Annotated[
    list[Path] | None,
    typer.Option(
        "--out",
        help="Write it here: .json or .md; repeatable.",
        # Before anything is measured.
        callback=lambda paths: paths and [*map(check_name, paths)],
    ),
]


def say(text: str) -> None:
    """How far it is."""
    print(text, file=sys.stderr, flush=True)


def finish(report: Report, paths: list[Path] | None) -> None:
    """Print and write."""
    report.show(Console())
    for path in paths or ():
        report.write(path)


def choose(
    known: dict[str, Workload], name: str, **changes: int | None
) -> Workload:
    """A known workload; changes that are None change nothing.

    Raises:
        ValueError: it is not known, or a change is out of range.
    """
    if name not in known:
        names = ", ".join(known)
        raise ValueError(f"no workload is called {name!r}; known: {names}")
    wanted: dict[str, Any] = {k: v for k, v in changes.items() if v is not None}
    return replace(known[name], **wanted)


@app.callback()
def _all() -> None:
    """Measure our engine, each of its parts, or any server."""


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

    work = choose(
        WORKLOADS,
        workload,
        requests=requests,
        shortest=shortest,
        longest=longest,
    )
    given = parse_settings(settings or ())
    with open_subject(model, shape, dtype, device, given) as subject:
        report = measure_offline(subject, work, peer or (), rounds, say)
    finish(report, out)


@app.command()
def ablation(
    model: Model = None,
    shape: Shape = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    settings: Set = None,
    workload: Kind = "gpu",
    requests: Requests = None,
    shortest: Shortest = None,
    longest: Longest = None,
    shared: Shared = None,
    long: Long = None,
    rounds: Rounds = 3,
    out: Out = None,
) -> None:
    """What each part of the engine is worth: one at a time is switched off."""
    from minisgl.benchmark.ablation import measure_ablation
    from minisgl.benchmark.subject import open_subject, parse_settings

    work = choose(
        QUEUES,
        workload,
        requests=requests,
        shortest=shortest,
        longest=longest,
        shared=shared,
        long=long,
    )
    given = parse_settings(settings or ())
    with open_subject(model, shape, dtype, device, given) as subject:
        report = measure_ablation(subject, work, rounds, say)
    finish(report, out)


@app.command()
def online(
    url: Annotated[str, typer.Option(help="Up to and with /v1.")] = (
        "http://127.0.0.1:1919/v1"
    ),
    rate: Annotated[
        list[str] | None,
        typer.Option(
            help="Requests a second: a number, inf for all at once, or a share "
            "like 80% of what was done a second with inf; repeatable."
        ),
    ] = None,
    users: Annotated[
        list[int] | None,
        typer.Option(min=1, help="So many ask one after another; repeatable."),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(help="Recorded traffic, a file of JSON lines."),
    ] = None,
    trace_kind: Annotated[str, typer.Option(help="mooncake or qwen.")] = (
        "mooncake"
    ),
    scale: Annotated[
        float, typer.Option(help="Multiplies the trace's times.")
    ] = 1.0,
    workload: Kind = "gpu",
    requests: Requests = None,
    shortest: Shortest = None,
    longest: Longest = None,
    shared: Shared = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="A folder or hub id, to make prompts of exact length."
        ),
    ] = None,
    api_key: Annotated[
        str, typer.Option(envvar="MINISGL_API_KEY", show_default=False)
    ] = "none",
    out: Out = None,
) -> None:
    """How long the clients of a server wait, at every rate that is named."""
    try:
        from minisgl.benchmark.online import Plan, Rate, run_online
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{error.name} is missing: pip install 'handwritten-minisgl[bench]'"
        ) from None

    plan = Plan(
        [Rate.parse(text) for text in rate or ()],
        list(users or ()),
        trace,
        trace_kind,
        scale,
    )
    work = choose(
        WORKLOADS,
        workload,
        requests=requests,
        shortest=shortest,
        longest=longest,
        shared=shared,
    )
    finish(run_online(url, api_key, work, plan, tokenizer, say), out)


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
