"""The one place that knows whether the engine runs on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch


def pick_device(name: str) -> torch.device:
    """``auto`` takes CUDA when there is one; otherwise what the name says.

    Raises:
        ValueError: the device is unknown or not on this machine.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.split(":")[0] not in ("cpu", "cuda"):
        raise ValueError(
            f"device {name!r} is not supported; use auto, cpu or cuda"
        )
    if name != "cpu" and not torch.cuda.is_available():
        raise ValueError(
            f"device {name!r}: no CUDA device here; use --device cpu"
        )
    return torch.device(name)


class NullStream:
    """Stands for a CUDA stream on a CPU, where work is done when it is asked."""

    def synchronize(self) -> None: ...


class NullEvent:
    """Stands for a CUDA event on a CPU: what it marks has already happened."""

    def record(self) -> None: ...

    def synchronize(self) -> None: ...


Stream = torch.cuda.Stream | NullStream
Event = torch.cuda.Event | NullEvent


def new_stream(device: torch.device) -> Stream:
    """A queue of device work beside the default one."""
    return torch.cuda.Stream(device) if device.type == "cuda" else NullStream()


def new_event(device: torch.device) -> Event:
    """A mark in a stream that the host can wait for."""
    return torch.cuda.Event() if device.type == "cuda" else NullEvent()


def use_stream(stream: Stream) -> AbstractContextManager[object]:
    """Inside, device work goes to `stream`."""
    if isinstance(stream, NullStream):
        return nullcontext()
    return torch.cuda.stream(stream)


def wait_for_current(stream: Stream) -> None:
    """What `stream` is given from here on comes after this thread's work so far.

    That is what went to the stream that is current: the default one, unless
    `use_stream` says otherwise. The host does not wait.
    """
    if not isinstance(stream, NullStream):
        stream.wait_stream(torch.cuda.current_stream(stream.device))


def to_device(
    data: Sequence[float] | torch.Tensor,
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    """Host numbers as a device tensor, without waiting for the copy.

    Only from pinned memory can a GPU fetch on its own.
    """
    host = torch.as_tensor(data, dtype=dtype)
    if device.type == "cuda":
        host = host.pin_memory()
    return host.to(device, non_blocking=True)


def to_host(data: torch.Tensor) -> torch.Tensor:
    """A copy on the host; on CUDA it is there once an event after it is."""
    if data.device.type == "cuda":
        return data.to("cpu", non_blocking=True)
    return data.clone()
