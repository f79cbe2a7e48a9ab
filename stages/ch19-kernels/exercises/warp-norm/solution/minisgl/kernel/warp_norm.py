"""RMSNorm as a kernel: the lanes of a warp agree on the size of a row."""

from __future__ import annotations

from pathlib import Path

import torch

from minisgl.kernel.compile import Library, binding, compile_host
from minisgl.kernel.utils import check_launch

THREADS = 128

_SOURCE = r"""
#include <cmath>

#include "device.h"

constexpr float kEps = 1e-6f;

__global__ void norm_rows(float* x, const float* weight, int64_t rows,
                          int64_t width) {
@BODY@
}

int64_t norm(int64_t x, int64_t weight, int64_t rows, int64_t width,
             int64_t threads) {
  return launch(norm_rows, div_ceil(rows, threads / kWarp),
                static_cast<int>(threads), 0, pointer<float>(x),
                pointer<const float>(weight), rows, width);
}
"""


def kernel_body() -> str:
    """The body of the kernel `norm_rows`, CUDA C++, without its braces.

    x [rows, width] without gaps, weight [width]. Every row of x becomes
    x / sqrt(mean(x^2) + kEps) * weight, in place. One warp a row: there are at
    least as many warps as rows, and all lanes of a warp are there. width is 1
    or more, and need not be a multiple of 32.
    """
    return r"""
  const int64_t row = global_warp();
  if (row >= rows) return;
  float* mine = x + row * width;
  float sum = 0;
  for (int64_t i = lane(); i < width; i += kWarp) sum += mine[i] * mine[i];
  // A lane adds what its partner has. After five exchanges, with partners ever
  // nearer, each has the sum of all 32.
  for (int bits = kWarp / 2; bits > 0; bits /= 2) {
    sum += __shfl_xor_sync(~0u, sum, bits);
  }
  const float scale = 1.0f / sqrtf(sum / width + kEps);
  for (int64_t i = lane(); i < width; i += kWarp) {
    mine[i] *= scale * weight[i];
  }
"""


def load(folder: Path) -> Library:
    """The kernel for the simulated GPU, compiled into `folder`.

    Raises:
        BuildError: no compiler, or the body is not C++.
    """
    source = _SOURCE.replace("@BODY@", kernel_body())
    code = source + binding([], [("norm", "norm")])
    return Library(compile_host("warp_norm", code, folder))


def norm_rows(library: Library, x: torch.Tensor, weight: torch.Tensor) -> None:
    """Norm each row of x, float32 [rows, width], in place; weight [width]."""
    rows, width = x.shape
    address, other = x.data_ptr(), weight.data_ptr()
    status = library.norm(address, other, rows, width, THREADS)
    check_launch("warp_norm", status)
