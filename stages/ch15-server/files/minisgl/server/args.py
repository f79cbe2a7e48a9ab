"""Everything a server is told before it starts."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import metadata

from minisgl.scheduler.addresses import socket_addr
from minisgl.scheduler.config import SchedulerConfig


@dataclass(frozen=True)
class ServerArgs(SchedulerConfig):
    """Settings of a server, beside those of its scheduler.

    server_host, server_port: where clients come; port 0 takes a free one.
    num_tokenizer: processes that turn text into tokens, beside the one that
        turns tokens into text; with 0 that one does both.
    silent_output: the other processes say only what is a warning or worse.
    served_model_name: what clients call the model, instead of its path.
    api_key: what clients must send as their key; None lets all in.
    root_path: the path under which a proxy offers this server.
    cors_origins: web pages of these origins may call it; ``*`` is all.
    num_threads: threads of a scheduler's torch, see `server.threads`.
    log_level: from which level on things are logged.
    shell_max_tokens, shell_temperature: for the answers of a shell.

    Raises:
        ValueError: a value that is out of range.
    """

    server_host: str = "127.0.0.1"
    server_port: int = 1919
    num_tokenizer: int = 0
    silent_output: bool = False
    served_model_name: str | None = None
    api_key: str | None = field(default=None, repr=False)
    root_path: str = ""
    cors_origins: tuple[str, ...] = ()
    num_threads: int | None = None
    log_level: str = "info"
    shell_max_tokens: int = 2048
    shell_temperature: float = 0.6

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.server_port < 2**16:
            raise ValueError("server_port must be from 0 to 65535")
        if self.num_tokenizer < 0:
            raise ValueError("num_tokenizer must be at least 0")
        if self.num_threads is not None and self.num_threads < 1:
            raise ValueError("num_threads must be at least 1")
        if self.shell_max_tokens < 1:
            raise ValueError("shell_max_tokens must be at least 1")
        if not 0.0 <= self.shell_temperature < float("inf"):
            raise ValueError("shell_temperature must be at least 0")

    @property
    def model_name(self) -> str:
        """What clients call the model; a path has no slash at its end."""
        return self.served_model_name or self.model_path.rstrip("/")

    @property
    def share_tokenizer(self) -> bool:
        """Whether one process turns text into tokens and tokens into text."""
        return self.num_tokenizer == 0

    @property
    def zmq_frontend_addr(self) -> str:
        """Where the API server takes text; it creates the address."""
        return socket_addr(self._unique_suffix, "frontend")

    @property
    def zmq_tokenizer_addr(self) -> str:
        """Where the API server puts requests."""
        if self.share_tokenizer:
            return self.zmq_detokenizer_addr
        return socket_addr(self._unique_suffix, "tokenizer")

    @property
    def tokenizer_create_addr(self) -> bool:
        """Whether a tokenizer creates the address from which it takes.

        Both the API server and the scheduler put into that of a shared one.
        """
        return self.share_tokenizer

    @property
    def backend_create_detokenizer_link(self) -> bool:
        """Whether rank 0 creates the address of tokens; else it joins it."""
        return not self.share_tokenizer

    @property
    def frontend_create_tokenizer_link(self) -> bool:
        """Whether the API server creates the address of requests.

        Then any number of tokenizers join, and take requests in turn.
        """
        return not self.share_tokenizer


def version() -> str:
    """Of this package, as it is installed."""
    try:
        return metadata.version("handwritten-minisgl")
    except metadata.PackageNotFoundError:
        return "unknown, for the package is not installed"


def parse_args(
    args: list[str], run_shell: bool = False
) -> tuple[ServerArgs, bool]:
    """What a command line says: the settings, and whether to open a shell.

    args: the words after the program's name.

    Raises:
        SystemExit: after --help and --version with 0; with 2 after one line
            on stderr that names the option that is wrong.
    """
    # Here, not above: only this process reads a command line.
    from minisgl.server.command import read_options

    return read_options(args, run_shell)
