"""From the words of a command line to settings."""

from __future__ import annotations

import inspect
import sys
from dataclasses import fields
from typing import Annotated, Any, NoReturn, cast

import typer

from minisgl.distributed import DistributedInfo
from minisgl.server.args import ServerArgs
from minisgl.server.options import GROUPS, Option

_PROGRAM = "python -m minisgl"
# Typer exports only this one of the errors that a command line can have.
_UsageError = cast("type[typer.BadParameter]", typer.BadParameter.__bases__[0])
# What is no field of ServerArgs, or has no default there.
_DEFAULTS = {
    "dtype": "auto",
    "tp_size": 1,
    "no_overlap": False,
    "shell": False,
    "version": False,
    "model_path": inspect.Parameter.empty,
}
# What a value is called in --help; a flag has none.
_METAVARS = {
    str: "TEXT",
    str | None: "TEXT",
    int: "N",
    int | None: "N",
    float: "X",
    list[str]: "TEXT",
    bool: None,
}


def _settings(**values: Any) -> dict[str, Any]:
    """Serve a language model with an API like OpenAI's, or chat with --shell."""
    return values


def _parameter(group: str, option: Option) -> inspect.Parameter:
    """The option as a parameter of a function, which is how Typer takes it."""
    known = {f.name: f.default for f in fields(ServerArgs)} | _DEFAULTS
    default = known[option.setting]
    info = typer.Option(
        *option.names.split(),
        help=option.text,
        rich_help_panel=group,
        metavar=_METAVARS[option.kind],
        is_eager=option.setting == "version",  # it needs no --model
        callback=option.check,
        envvar=option.env,
        show_default=default is not None and option.env is None,
    )
    return inspect.Parameter(
        option.setting,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[option.kind, info],
    )


def _command() -> Any:
    """The command that takes all options and returns the settings."""
    parameters = [
        _parameter(group, option)
        for group, options in GROUPS.items()
        for option in options
    ]
    app = typer.Typer(add_completion=False)
    function: Any = _settings
    function.__signature__ = inspect.Signature(parameters)
    function.__annotations__ = {p.name: p.annotation for p in parameters}
    app.command()(function)
    return typer.main.get_command(app)


def _fail(reason: str) -> NoReturn:
    line = " ".join(reason.split()).removesuffix(".")
    print(f"error: {line} (see {_PROGRAM} --help)", file=sys.stderr)
    raise SystemExit(2)


def _name_option(reason: str) -> str:
    """The text with an option's name where it begins with a setting's."""
    first, _, rest = reason.partition(" ")
    for option in (o for options in GROUPS.values() for o in options):
        if option.setting == first:
            return f"{option.names.split()[0]} {rest}"
    return reason


def read_options(args: list[str], run_shell: bool) -> tuple[ServerArgs, bool]:
    """As `server.args.parse_args`."""
    try:
        found = _command().main(args, _PROGRAM, standalone_mode=False)
    except _UsageError as error:
        _fail(error.format_message())
    if not isinstance(found, dict):  # --help, --version
        raise SystemExit(0)
    run_shell = found.pop("shell") or run_shell
    if run_shell:
        # One person asks one question at a time, and wants to read answers.
        found["max_running_req"] = min(found["max_running_req"], 4)
        found["silent_output"] = True
    del found["version"]
    found["overlap"] = not found.pop("no_overlap")
    found["tp_info"] = DistributedInfo(0, found.pop("tp_size"))
    found["cors_origins"] = tuple(found["cors_origins"] or ())
    try:
        return ServerArgs(**found), run_shell
    except ValueError as error:
        _fail(_name_option(str(error)))
