"""Attention backends, operators and recorded steps on a GPU: one table, red or green.

Every operator of a library is compared with torch's on the same tensors. Whole models:
float32 by the torch backend must give the tokens of transformers. In bfloat16 two right
kernels may choose differently where the best logits are nearly equal: at the first
difference between two engines the gap of the two tokens, in a float32 reference, must
be under BOUND standard deviations of the logits.

`--device cpu` tries out the script itself, with stand-ins in place of the libraries.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from minisgl.core import SamplingParams
from minisgl.engine.sample import sample_impl
from minisgl.layers import get_rope, set_rope_device
from minisgl.layers.activation import silu_and_mul
from minisgl.layers.gpu_ops import flashinfer_for
from minisgl.layers.norm import RMSNorm, RMSNormFused
from minisgl.llm import LLM
from minisgl.utils import libraries
from tools.models import model_path

parity: Any = import_module("tests.parity")

BOUND = 0.2
TOKENS = 32
MODELS = ["qwen3-tiny", "qwen2-tiny", "llama3-tiny"]
RECORDED = [1, 2, 4, 8, 16]
HALVES = [
    ("fi", 1),
    ("fi", 16),
    ("fi", 256),
    ("fa", 256),
    ("fa,fi", 256),
    ("torch,fi", 4),
    ("auto", 16),
]


@dataclass
class Table:
    """Rows as they come; `failed` counts the red ones."""

    failed: int = 0
    rows: list[str] = field(default_factory=list)

    def row(self, name: str, check: Callable[[], str]) -> None:
        """Run a check; it returns what to show, or fails with a reason."""
        begin = time.perf_counter()
        try:
            text, mark = check(), "ok"
        except Exception as error:
            text, mark = f"{type(error).__name__}: {error}", "FAIL"
            self.failed += 1
        spent = time.perf_counter() - begin
        line = f"{mark:5}{name:50}{spent:6.1f} s  {text.splitlines()[0][:200]}"
        self.rows.append(line)
        print(line, flush=True)


class Answers:
    """Tokens of the fixed prompts of a model, from one engine after the other."""

    def __init__(self, model: str, device: str) -> None:
        self.model, self.device = model, device
        self.folder = model_path(model)
        self.prompts = parity.prompts(model)
        self.params = SamplingParams(max_tokens=TOKENS, ignore_eos=True)
        self._hf: Any = None

    def of(self, backend: str, page: int, dtype: str, **settings: Any) -> Any:
        """[prompts][TOKENS] token ids."""
        llm = LLM(
            str(self.folder),
            dtype=dtype,
            device=self.device,
            attention_backend=backend,
            page_size=page,
            num_page_override=8192 // page,
            max_seq_len_override=1024,
            **settings,
        )
        found = llm.generate(self.prompts, self.params, progress=False)
        return [answer["token_ids"] for answer in found]

    def exact(self, found: Sequence[Sequence[int]]) -> str:
        """Compare with transformers in float32 on the CPU, token for token."""
        for prompt, ids in zip(self.prompts, found, strict=True):
            expected = parity.reference(self.folder, prompt, TOKENS).ids
            at = parity.first_difference(ids, expected)
            assert at is None, f"token {at} of a prompt of {len(prompt)}"
        return f"{len(found) * TOKENS} tokens equal transformers"

    def near(self, found: Sequence[Sequence[int]], other: Any) -> str:
        """Compare two engines up to the first difference of each answer."""
        equal, worst = 0, 0.0
        for prompt, a, b in zip(self.prompts, found, other, strict=True):
            at = parity.first_difference(a, b)
            if at is None:
                equal += len(a)
                continue
            equal += at
            worst = max(worst, self._gap([*prompt, *a[:at]], a[at], b[at]))
        text = f"{equal} of {len(found) * TOKENS} equal, worst gap {worst:.3f}"
        assert worst < BOUND, text
        return text

    def _gap(self, ids: list[int], a: int, b: int) -> float:
        """Between the logits of two tokens, in standard deviations."""
        if self._hf is None:
            from transformers import AutoModelForCausalLM

            self._hf = AutoModelForCausalLM.from_pretrained(
                self.folder, dtype=torch.float32
            ).to(self.device)
        with torch.inference_mode():
            where = torch.tensor([ids], device=self.device)
            logits = self._hf(where).logits[0, -1]
        best = logits.max()
        return float(
            (best - torch.minimum(logits[a], logits[b])) / logits.std()
        )


@contextmanager
def without_libraries() -> Iterator[None]:
    """Inside, operators and draws are torch's."""
    before, libraries._DEVICES = libraries._DEVICES, ()
    try:
        yield
    finally:
        libraries._DEVICES = before


def agrees(run: Callable[..., Any], *inputs: torch.Tensor) -> str:
    """An operator gives by the library what it gives by torch, but for rounding."""
    assert flashinfer_for(inputs[0]) is not None, "the library is not used"
    # Some write into what they are given.
    given = [tuple(x.clone() for x in inputs) for _ in range(2)]
    with without_libraries():
        wanted = run(*given[0])
    mine = run(*given[1])
    pairs = [*zip(mine, wanted, strict=True)] if isinstance(mine, tuple) else [
        (mine, wanted)
    ]  # fmt: skip
    equal = total = 0
    for a, b in pairs:
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)
        equal, total = equal + int((a == b).sum()), total + a.numel()
    return f"{equal / total:.2%} of {total:,} numbers have equal bits"


def operators(device: str) -> dict[str, Callable[[], str]]:
    """Those that a library brings, in the shape of a Qwen3 layer of 300 tokens."""
    rng = torch.Generator(device).manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        found = torch.randn(shape, generator=rng, device=device)
        return found.to(torch.bfloat16)

    qkv, hidden, wide = (
        random(300, 32 * 128),
        random(300, 1024),
        random(300, 6144),
    )
    norm, fused = RMSNorm(128, 1e-6), RMSNormFused(1024, 1e-6)
    norm.weight, fused.weight = random(128), random(1024)
    set_rope_device(torch.device(device))
    rope = get_rope(128, 128, 4096, 1e6)
    places = torch.randint(4096, (300,), generator=rng, device=device).int()

    def heads_norm(x: torch.Tensor) -> torch.Tensor:
        return norm.forward(x.view(300, 32, 128)[:, :16])

    def rotate(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q, k, _ = x.split([16 * 128, 8 * 128, 8 * 128], dim=-1)
        return rope.forward(places, q, k)

    return {
        "norm of heads": lambda: agrees(heads_norm, qkv),
        "residual and norm": lambda: agrees(
            fused.forward, hidden, random(300, 1024)
        ),
        "rotary embedding": lambda: agrees(rotate, qkv),
        "silu and product": lambda: agrees(silu_and_mul, wide),
    }


def draws_are_allowed(device: str) -> str:
    """Tokens that the library's limits let through are allowed by a sort too."""
    rows, vocab = 64, 151936
    rng = torch.Generator(device).manual_seed(0)
    logits = 3 * torch.randn(rows, vocab, generator=rng, device=device)
    temperatures = torch.full((rows,), 0.8, device=device)
    top_k = torch.full((rows,), 50, device=device)
    top_p = torch.full((rows,), 0.9, device=device)
    probs = (logits.double() / 0.8).softmax(-1)
    ordered = probs.sort(-1, descending=True)
    kept = ordered.values[:, :50] / ordered.values[:, :50].sum(-1, keepdim=True)
    count = (kept.cumsum(-1) - kept < 0.9).sum(-1)
    seen = 0
    for _ in range(20):
        numbers = torch.rand(rows, generator=rng, device=device)
        drawn = sample_impl(logits, temperatures, top_k, top_p, None, numbers)
        rank = (ordered.indices == drawn.unsqueeze(1)).int().argmax(-1)
        # A token more where the sum comes to 0.9 within rounding.
        assert bool((rank <= count).all()), "a token past the limits was drawn"
        seen += int((rank < count).sum())
    return f"{seen} of {20 * rows} within the limits, the rest at their edge"


def draw_times(device: str) -> str:
    """Milliseconds a draw, by torch and by the library."""
    cells = []
    for rows in (1, 64, 256):
        logits = torch.randn(rows, 151936, device=device)
        heat = torch.full((rows,), 0.6, device=device)
        k = torch.full((rows,), 151936, device=device)
        p = torch.full((rows,), 0.9, device=device)
        numbers = torch.rand(rows, device=device)
        for name, top_k, top_p in (("all", None, None), ("top_p", k, p)):
            spent = []
            for context in (without_libraries, nullcontext):
                with context():
                    for run in range(13):
                        if run == 3:
                            torch.cuda.synchronize()
                            begin = time.perf_counter()
                        sample_impl(logits, heat, top_k, top_p, None, numbers)
                    torch.cuda.synchronize()
                    spent.append(100 * (time.perf_counter() - begin))
            cells.append(f"{rows} {name} {spent[0]:.2f}->{spent[1]:.2f}")
    return "ms: " + ", ".join(cells)


def seeds_hold(device: str) -> str:
    """A seeded request answers alone as beside others (float32)."""
    llm = LLM(
        str(model_path("qwen3-tiny")),
        dtype="float32",
        device=device,
        num_page_override=8192,
    )
    asked = parity.prompts("qwen3-tiny")
    mine = SamplingParams(max_tokens=16, temperature=1.0, top_p=0.9, seed=42)
    other = SamplingParams(max_tokens=16, temperature=1.0, seed=7)
    alone = llm.generate([asked[5]], mine, progress=False)[0]["token_ids"]
    params = [other] * 5 + [mine] + [other] * 4
    beside = llm.generate(asked, params, progress=False)[5]["token_ids"]
    assert alone == beside, (
        f"token {parity.first_difference(alone, beside)} differs"
    )
    return f"{len(alone)} tokens alone and beside 9 others"


def main(device: str = "cuda") -> None:
    """Print the table; exit with 1 if a row is red."""
    table = Table()
    if device == "cuda":
        print(f"# {torch.cuda.get_device_name()}, torch {torch.__version__}")
        check_all(table, device)
    else:
        with import_module("tests.fakes.install").stand_ins(hopper=False):
            check_all(table, device)
    print(f"{len(table.rows)} rows, {table.failed} red")
    raise typer.Exit(1 if table.failed else 0)


def check_all(table: Table, device: str) -> None:
    """Fill the table, the cheap rows first."""
    for name, check in operators(device).items():
        table.row(f"{name}, library to torch", check)
    table.row("draws within limits", lambda: draws_are_allowed(device))
    if device == "cuda":
        table.row("draws, torch -> library", lambda: draw_times(device))
    table.row("seeds hold", lambda: seeds_hold(device))
    for model in MODELS:
        answers = Answers(model, device)
        for page, sizes in ((1, []), (16, []), (16, RECORDED)):
            name = f"{model} float32 torch, pages {page}"
            name += ", recorded" if sizes else ""
            table.row(
                name,
                lambda a=answers, p=page, s=sizes: a.exact(  # type: ignore[misc]
                    a.of("torch", p, "float32", cuda_graph_bs=s)
                ),
            )
    for model in MODELS:
        answers = Answers(model, device)
        half: list[Any] = []
        with without_libraries():
            table.row(
                f"{model} bfloat16 torch",
                lambda a=answers, h=half: (  # type: ignore[misc]
                    h.append(a.of("torch", 1, "bfloat16", cuda_graph_bs=[]))
                    or "the base of the next rows"
                ),
            )
        kinds = HALVES if model == MODELS[0] else HALVES[-1:]
        for backend, page in kinds:
            pair: list[Any] = []

            def eager(
                a: Answers = answers,
                b: str = backend,
                p: int = page,
                h: list[Any] = half,
                out: list[Any] = pair,
            ) -> str:
                out.append(a.of(b, p, "bfloat16", cuda_graph_bs=[]))
                return a.near(out[0], h[0])

            def recorded(
                a: Answers = answers,
                b: str = backend,
                p: int = page,
                out: list[Any] = pair,
            ) -> str:
                found = a.of(b, p, "bfloat16", cuda_graph_bs=RECORDED)
                return a.near(found, out[0])

            name = f"{model} bfloat16 {backend}, pages {page}"
            table.row(f"{name} to torch", eager)
            table.row(f"{name} recorded to not", recorded)


if __name__ == "__main__":
    typer.run(main)
