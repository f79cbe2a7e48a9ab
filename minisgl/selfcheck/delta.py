"""The gated delta rule: chunks against steps, and kernels against torch."""

from __future__ import annotations

import torch

from minisgl.attention.segments import NOWHERE, Segment, Wave
from minisgl.kernel import delta
from minisgl.selfcheck.operators import share_apart
from minisgl.selfcheck.report import Setting

_LENGTHS = (1, 16, 150)
_FAR = {torch.float32: 1e-3, torch.bfloat16: 1e-1}
"""What rounding may do; tokens of bfloat16 are multiplied as TF32."""


class Problem:
    """Random tokens of three requests, and the states before them."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        k_heads, v_heads, dim, width = 2, 4, 128, 4
        tokens = sum(_LENGTHS)
        channels = (2 * k_heads + v_heads) * dim

        def draw(*sizes: int) -> torch.Tensor:
            return torch.randn(sizes, device=device).to(dtype)

        self.inputs = draw(tokens, channels), draw(tokens, 2 * v_heads)
        self.weights = delta.DeltaWeights(
            draw(channels, width), draw(v_heads), draw(v_heads), k_heads, dim
        )
        self.conv = draw(6, channels, width - 1)
        self.recurrent = draw(6, v_heads, dim, dim).float()
        start, segments = 0, []
        for row, length in enumerate(_LENGTHS):
            stop = start + length
            segments.append(Segment(start, stop, 3 + row, row, NOWHERE))
            start = stop
        table = torch.tensor(segments, dtype=torch.int32, device=device)
        self.waves = [Wave(segments, table)]

    def prefill(self, kernels: bool) -> list[torch.Tensor]:
        """The result of all tokens, and the states after them."""
        states = self.conv.clone(), self.recurrent.clone()
        run = delta.delta_prefill if kernels else delta.delta_prefill_torch
        out = run(*self.inputs, self.weights, *states, self.waves)
        return [out, *(state[:3] for state in states)]

    def decode(self) -> list[torch.Tensor]:
        """The same, each request token by token."""
        states = self.conv.clone(), self.recurrent.clone()
        out = []
        for segment in self.waves[0].segments:
            for state in states:
                state[segment.row] = state[segment.source]
            rows = torch.tensor([segment.row], device=self.conv.device)
            for t in range(segment.start, segment.stop):
                qkv, gates = (x[t : t + 1] for x in self.inputs)
                out.append(
                    delta.delta_decode(qkv, gates, self.weights, *states, rows)
                )
        return [torch.cat(out), *(state[:3] for state in states)]


def check_delta(setting: Setting) -> str:
    """Three prompts as a whole and token by token, from states of others."""
    worst = []
    for dtype, limit in _FAR.items():
        problem = Problem(setting.device, dtype)
        wanted = problem.prefill(kernels=False)
        for name in ("chunks", "steps"):
            chunks = name == "chunks"
            got = problem.prefill(True) if chunks else problem.decode()
            far = max(
                share_apart(x.float(), y.float())
                for x, y in zip(got, wanted, strict=True)
            )
            assert far < limit, f"{name} in {dtype}: {far:.1e} apart"
            kind = str(dtype).removeprefix("torch.")
            worst.append(f"{kind} {name} {far:.0e}")
    return "apart: " + ", ".join(worst)
