"""Kernels of float8 beside plain torch; run as a program, under the interpreter.

`python tests/float8.py` fails, or prints "equal". TRITON_INTERPRET=1 must be set
before triton is imported, so a test starts it as a process of its own.
"""

import ctypes
import mmap
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from minisgl.quant import fp8  # noqa: E402

E4M3 = torch.float8_e4m3fn
runs_triton, few_rows = fp8.runs_triton, fp8._few_rows
is_alone = fp8._is_alone


def with_torch(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`quantize_rows` without its kernel."""
    fp8.runs_triton = lambda device: False
    found = fp8.quantize_rows(x)
    fp8.runs_triton = runs_triton
    return found


def check_rows() -> None:
    x = torch.randn(6, 100, generator=torch.Generator().manual_seed(0))
    x = x.bfloat16()
    x[2], x[3], x[4] = 0, 1000 * x[3], x[4] / 1000
    x[:, 80:] = 1e4  # nothing of a row
    assert fp8.runs_triton(x.device)
    rows, scale = fp8.quantize_rows(x[:, :80])
    plain, expected = with_torch(x[:, :80])
    assert torch.allclose(scale, expected, rtol=1e-6, atol=0)
    same = rows.float() == plain.float()
    # The interpreter loses what is carried into the exponent: 127 becomes 64,
    # not 128.
    carried = torch.frexp(plain.float().abs()).mantissa == 0.5
    assert (same | carried).all() and same.float().mean() > 0.95


def check_product(rows: int, outs: int, width: int) -> None:
    make = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, width, generator=make).bfloat16()
    weight = torch.randn(outs, width, generator=make).to(E4M3)
    scale = torch.rand(outs, 1, generator=make) + 0.5
    small, row_scale = with_torch(x)
    exact = (small.float() * row_scale) @ (weight.float() * scale).T
    for alone in (is_alone, lambda *args: False):
        fp8._is_alone = alone
        found = few_rows(small, row_scale, weight, scale, x.dtype)
        fp8._is_alone = is_alone
        torch.testing.assert_close(found.float(), exact, rtol=8e-3, atol=8e-3)


def up_to_a_wall(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in memory behind which none may be read: doing so ends the process."""
    page, size = mmap.PAGESIZE, tensor.nbytes
    used = -(-size // page) * page
    memory = mmap.mmap(-1, used + page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    wall = ctypes.c_void_p(start + used), ctypes.c_size_t(page)
    assert ctypes.CDLL(None).mprotect(*wall, 0) == 0
    copy = torch.frombuffer(
        memory, dtype=torch.uint8, count=size, offset=used - size
    )
    copy.copy_(tensor.view(torch.uint8).flatten())
    return copy.view(tensor.dtype).view(tensor.shape)


def check_edges() -> None:
    """Rows and columns that fill no block: what is not there is not read."""
    rows, weight = torch.ones(17, 256).to(E4M3), torch.ones(80, 256).to(E4M3)
    factors = [rows, torch.ones(17, 1), weight, torch.ones(80, 1)]
    found = few_rows(*map(up_to_a_wall, factors), torch.bfloat16)
    assert (found == 256).all()


def check_choice() -> None:
    """What the kernel is not made for, torch computes."""
    used = []
    fp8._few_rows = lambda *args: used.append(len(args[0])) or few_rows(*args)
    few = fp8.FEW_ROWS
    shapes = [(0, 256), (1, 512), (2, 272), (few, 256), (few + 1, 256)]
    for rows, width in shapes:
        x = torch.ones(rows, width).bfloat16()
        weight = torch.ones(16, width).to(E4M3)
        found = fp8.scaled_product(x, weight, torch.ones(16, 1))
        assert found.shape == (rows, 16) and (found == width).all()
    assert used == [1, few], used


if __name__ == "__main__":
    check_rows()
    check_product(1, 64, 512)
    check_product(17, 80, 256)
    check_product(64, 208, 768)
    check_edges()
    check_choice()
    print("equal")
