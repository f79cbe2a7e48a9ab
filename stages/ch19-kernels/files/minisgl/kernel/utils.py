"""How a kernel is described, loaded, and when one is used at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from minisgl.kernel.compile import BuildError, Library, Target, build
from minisgl.utils import init_logger

logger = init_logger(__name__)

_CPP_TYPES = {torch.int32: "int32_t", torch.int64: "int64_t"}
_simulated = False


class CppArgList(list[str]):
    """Template arguments; as text what stands between < and >."""

    def __str__(self) -> str:
        return ", ".join(self)


class KernelConfig(NamedTuple):
    """How a kernel is launched.

    num_threads: of a block, a multiple of 32.
    max_occupancy: blocks that shall fit on one multiprocessor; it limits the
        registers of a thread.
    """

    num_threads: int
    max_occupancy: int

    @property
    def template_args(self) -> str:
        return str(make_cpp_args(*self))


def make_cpp_args(*args: int | bool | torch.dtype) -> CppArgList:
    """Python values as template arguments.

    Raises:
        TypeError: a dtype that no kernel takes as an index.
    """
    made = CppArgList()
    for arg in args:
        if isinstance(arg, torch.dtype):
            if arg not in _CPP_TYPES:
                raise TypeError(f"indices are int32 or int64, not {arg}")
            made.append(_CPP_TYPES[arg])
        else:
            made.append(str(int(arg)))
    return made


def load_jit(
    *args: str,
    files: list[str],
    wrappers: list[tuple[str, str]],
    target: Target,
    build_directory: str | None = None,
) -> Library:
    """Compile, unless it is there, and load.

    args: parts of the module's name, for logs and folders.
    files: sources in csrc/.
    wrappers: for each function its name here, and the C++ function, a template
        with its arguments most often.

    Raises:
        BuildError: it cannot be compiled here.
    """
    folder = None if build_directory is None else Path(build_directory)
    return build("_".join(args), files, wrappers, target, folder)


def try_load_jit(*args: str, **kwargs: Any) -> Library | None:
    """As `load_jit`, but None and one line in the log when it fails."""
    try:
        return load_jit(*args, **kwargs)
    except BuildError as error:
        logger.warning(f"torch does the work of a kernel: {error}")
        return None


def kernel_target(device: torch.device) -> Target | None:
    """What a kernel for tensors on `device` is compiled for; None: use torch."""
    if device.type == "cuda":
        return "cuda"
    return "simulator" if _simulated else None


@contextmanager
def simulated_kernels() -> Iterator[None]:
    """Inside, tensors on the CPU go through the CUDA kernels, simulated."""
    global _simulated
    before, _simulated = _simulated, True
    try:
        yield
    finally:
        _simulated = before


def current_stream(device: torch.device) -> int:
    """The number of the stream that torch uses; 0 on a CPU."""
    if device.type != "cuda":
        return 0
    return torch.cuda.current_stream(device).cuda_stream


def check_launch(name: str, status: int) -> None:
    """Raise RuntimeError unless a launch went well."""
    if status != 0:
        raise RuntimeError(
            f"kernel {name} was not launched: CUDA error {status}"
        )


class Rows(NamedTuple):
    """A tensor as rows of bytes: where, how many, how long, how far apart."""

    address: int
    length: int
    size: int
    stride: int


def rows_of(x: torch.Tensor) -> Rows:
    """The rows of x [n, ...] with n > 0; between rows there may be gaps.

    Raises:
        ValueError: there are gaps within a row.
    """
    row, unit = x[0], x.element_size()
    if not row.is_contiguous():
        raise ValueError(f"a row of {list(row.shape)} has gaps")
    return Rows(x.data_ptr(), len(x), row.numel() * unit, x.stride(0) * unit)


def word_size(*rows: Rows) -> int:
    """Bytes of the largest word, 16 at most, in which all of them can move."""
    bits = 16
    for address, _, size, stride in rows:
        bits |= address | size | stride
    return bits & -bits
