"""Memory, speed and error of a model in each of the forms its numbers can have.

Weights: what the engine holds of them, and of one token's keys and values. Speed:
decode steps of one request, the forms taking turns. Error: the mean Kullback-Leibler
divergence of the next-token distribution from that of transformers in float32, over all
positions of a fixed text.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console
from rich.table import Table

from minisgl.core import SamplingParams
from minisgl.kernel.quant_linear import quant_linear
from minisgl.layers.packed import pack_weight, packed_linear
from minisgl.llm import LLM
from minisgl.models.quantized import named_linears
from minisgl.quant import QuantConfig, create_quant_method
from tools.models import model_path

TEXT = """\
A ship that leaves the harbour of Lisbon in spring has the wind behind it for the first
week. The crew of the Esperanza knew this, and so nobody was surprised when the coast
sank below the horizon on the second day. The captain, a woman of fifty who had learned
her trade on fishing boats, kept a diary in which she wrote down the temperature of the
water, the height of the waves, and what there had been for dinner. "On the third of
May," she wrote, "we saw eleven whales. The youngest of them swam beside us for an hour
and seemed to listen to the engine." Two days later the engine stopped.

There are three reasons why a diesel engine stops: it has no fuel, it has no air, or
something in it is broken. The engineer checked the first two in ten minutes. The third
took him the whole night. In the morning he came on deck with a small piece of metal in
his hand, no larger than a coin, and said that this had been a part of the pump. He
could make a new one, he said, but it would take him until the evening, and he would
need the silver spoon that the captain had been given by her mother. She gave it to
him. At six o'clock the engine ran again, and it ran until they reached the Azores on
the ninth of May, at half past four in the afternoon, in heavy rain.
"""

FORMS: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "bf16": {},
    "fp8": {"quantization": "fp8"},
    "int8": {"quantization": "int8"},
    "int4": {"quantization": "int4"},
    "fp8 KV": {"kv_cache_dtype": "fp8_e4m3"},
    "int8, fp8 KV": {"quantization": "int8", "kv_cache_dtype": "fp8_e4m3"},
}
PROMPT, MORE = 32, 40

Product = Callable[[torch.Tensor], torch.Tensor]
"""x bf16 [1, in] -> [1, out]."""


def all_logits(llm: LLM, ids: list[int]) -> torch.Tensor:
    """float32 [tokens, vocab]: what follows each of `ids`, in one prefill step.

    The engine has no prefix cache, or one that does not know them.
    """
    head: Any = llm.engine.model.lm_head  # type: ignore[attr-defined]
    forward, noted = head.forward, list[torch.Tensor]()

    def noting(x: torch.Tensor) -> Any:
        table = head if head._tied is None else head._tied
        noted.append(head._multiply(x, table.weight, head.bias).float())
        return forward(x)

    head.forward = noting
    try:
        llm.generate([ids], SamplingParams(max_tokens=1), progress=False)
    finally:
        del head.forward
    assert len(noted[0]) == len(ids), "the prompt was computed in one step"
    return noted[0]


def reference_logits(folder: Path, ids: list[int]) -> torch.Tensor:
    """The same of transformers in float32."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([ids])).logits[0]
    return logits.float()


def mean_kl(expected: torch.Tensor, found: torch.Tensor) -> float:
    """Mean of KL(expected || found) over rows of logits, in nats."""
    p, q = expected.double().log_softmax(-1), found.double().log_softmax(-1)
    return float((p.exp() * (p - q)).sum(-1).mean())


@dataclass
class Subject:
    """An engine in one form, and what was measured of it."""

    llm: LLM
    kl: float
    steps: list[float]

    @property
    def weights(self) -> int:
        """Bytes of everything that has a name in the model."""
        return sum(
            w.nbytes for w in self.llm.engine.model.state_dict().values()
        )

    @property
    def token_bytes(self) -> int:
        """Bytes of the keys and values of one token."""
        pool = self.llm.engine.ctx.kv_cache
        size = pool.k_cache(0).nbytes // pool.k_cache(0)[..., 0, 0].numel()
        return 2 * pool.num_layers * size

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return 1 / statistics.median(self.steps)


def step_seconds(llm: LLM, turn: int) -> float:
    """Of one decode step: of a long answer less a short one."""
    took = []
    for tokens in (2, 2 + MORE):
        prompt = [(13 * turn + 7 * i) % 400 + 5 for i in range(PROMPT)]
        params = SamplingParams(max_tokens=tokens, ignore_eos=True)
        begin = time.perf_counter()
        llm.generate([prompt], params, progress=False)
        took.append(time.perf_counter() - begin)
    return (took[1] - took[0]) / MORE


def measure(folder: Path, forms: list[str], turns: int) -> dict[str, Subject]:
    """All forms side by side, so that what disturbs one disturbs all."""
    from tools.stagekit import load_tokenizer

    ids = list(load_tokenizer(folder)(TEXT).input_ids)
    expected = reference_logits(folder, ids)
    subjects = {}
    for name in forms:
        settings: dict[str, Any] = {"dtype": "bfloat16"}
        llm = LLM(
            str(folder),
            **settings | FORMS[name],
            device="cpu",
            num_page_override=1024,
            cache_type="naive",
        )
        subjects[name] = Subject(
            llm, mean_kl(expected, all_logits(llm, ids)), []
        )
        step_seconds(llm, 0)
    for turn in range(turns):
        for subject in subjects.values():
            subject.steps.append(step_seconds(subject.llm, turn))
    return subjects


def quantised(name: str, weight: torch.Tensor) -> Product:
    """A format of ours."""
    group = 32 if name == "int4" else weight.shape[1]
    method = create_quant_method(QuantConfig(name, group))
    values, scale = method.quantize(weight)
    return lambda x: quant_linear(x, values, scale, group)


def torch_int8(weight: torch.Tensor) -> Product:
    """torch's product of bf16 with int8."""
    values, scale = create_quant_method(QuantConfig("int8")).quantize(weight)
    narrow = scale[:, 0].bfloat16()
    return lambda x: torch.ops.aten._weight_int8pack_mm(x, values, narrow)


def torch_integers(weight: torch.Tensor) -> Product:
    """torch's product of integers; a row of x gets its scale on the way."""
    values, scale = create_quant_method(QuantConfig("int8")).quantize(weight)
    turned, factor = values.t().contiguous(), scale[:, 0].bfloat16()

    def product(x: torch.Tensor) -> torch.Tensor:
        step = x.abs().amax(1, keepdim=True) / 127
        whole = (x / step).round().to(torch.int8)
        return torch._int_mm(whole, turned).to(x.dtype) * step * factor

    return product


def torch_int4(weight: torch.Tensor) -> Product:
    """torch's product of bf16 with int4, in groups of 32."""
    groups = weight.unflatten(1, (-1, 32))
    scale = groups.abs().amax(2) / 7
    values = (groups / scale.unsqueeze(2)).round().clamp(-8, 7) + 8
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(
        values.flatten(1).int(), 1
    )
    both = torch.stack([scale, torch.zeros_like(scale)], 2).transpose(0, 1)
    both = both.contiguous().bfloat16()
    return lambda x: torch.ops.aten._weight_int4pack_mm_for_cpu(
        x, packed, 32, both
    )


def packed_bf16(weight: torch.Tensor) -> Product:
    """What chapter 6 made of a weight."""
    opaque = pack_weight(weight.bfloat16())
    return lambda x: packed_linear(x, opaque, None)


PRODUCTS: dict[str, Callable[[torch.Tensor], Product]] = {
    "bf16, packed": packed_bf16,
    "torch's int8": torch_int8,
    "torch's integers": torch_integers,
    "int8": partial(quantised, "int8"),
    "fp8": partial(quantised, "fp8"),
    "torch's int4": torch_int4,
    "int4": partial(quantised, "int4"),
}


def show_products(console: Console, llm: LLM) -> None:
    """Print the time of all linears of a model for one row, in each way."""
    shapes = [op._local_size for _, op in named_linears(llm.engine.model)]
    make = torch.Generator().manual_seed(0)
    weights = [torch.randn(shape, generator=make) for shape in shapes]
    rows = {
        columns: torch.randn(1, columns, generator=make).bfloat16()
        for _, columns in shapes
    }
    table = Table(box=None, header_style="")
    table.add_column(f"{len(shapes)} products of one row")
    table.add_column("ms", justify="right")
    for name, prepare in PRODUCTS.items():
        made = [(prepare(w), rows[w.shape[1]]) for w in weights]
        took = []
        for _ in range(12):
            begin = time.perf_counter()
            for product, x in made:
                product(x)
            took.append(time.perf_counter() - begin)
        table.add_row(name, f"{1e3 * statistics.median(took[2:]):.2f}")
    console.print(table)


def gain(plain: list[float], steps: list[float]) -> float:
    """How many times as fast: the median over turns, in each of which both ran."""
    return statistics.median(a / b for a, b in zip(plain, steps, strict=True))


def show(console: Console, subjects: dict[str, Subject]) -> None:
    """Print the table, and the ratio that counts."""
    table = Table(box=None, header_style="")
    for title in (
        *("form", "weights MiB", "KV bytes a token", "tokens/s", "of bf16"),
        "mean KL, nats",
    ):
        table.add_column(title, justify="left" if title == "form" else "right")
    plain = subjects["bf16"].steps
    for name, one in subjects.items():
        table.add_row(
            name,
            f"{one.weights / 2**20:.1f}",
            f"{one.token_bytes:,}",
            f"{one.rate:.1f}",
            f"{gain(plain, one.steps):.2f}",
            f"{one.kl:.2e}",
        )
    console.print(table)


def main(
    model: Annotated[str, typer.Option(help="name or folder")] = "smollm2-135m",
    forms: Annotated[
        str, typer.Option(help="with semicolons between")
    ] = ";".join(FORMS),
    turns: Annotated[int, typer.Option(help="how often each is timed")] = 7,
) -> None:
    """Print one table: one request on a CPU, in every form."""
    wanted = ["bf16", *forms.split(";")]
    folder = model_path(model)
    console = Console(width=100, highlight=False)
    console.print(
        f"{model}, one request on {torch.get_num_threads()} threads "
        f"({torch.backends.cpu.get_cpu_capability()}), {turns} turns"
    )
    order = [name for name in FORMS if name in wanted]
    subjects = measure(folder, order, turns)
    show(console, subjects)
    console.print()
    with torch.inference_mode():
        show_products(console, subjects["bf16"].llm)


if __name__ == "__main__":
    typer.run(main)
