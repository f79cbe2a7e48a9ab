"""What main prints, computed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from minisgl.core import SamplingParams
from minisgl.kernel.quant_linear import dequantize
from minisgl.llm import LLM
from minisgl.quant import QuantConfig, create_quant_method
from tools.stagekit import measured

FORMS: dict[str, dict[str, Any]] = {
    "float32": {},
    "bf16": {"dtype": "bfloat16"},
    "fp8": {"quantization": "fp8"},
    "int8": {"quantization": "int8"},
    "int4": {"quantization": "int4"},
    "fp8 KV": {"kv_cache_dtype": "fp8_e4m3"},
}


def forms(path: Path) -> Iterator[tuple[str, LLM]]:
    """An engine in each form, one after the other."""
    for name, settings in FORMS.items():
        given: dict[str, Any] = {"device": "cpu", "dtype": "float32"}
        yield (
            name,
            LLM(
                str(path),
                cache_type="naive",
                num_page_override=512,
                **given | settings,
            ),
        )


def answers_of(llm: LLM) -> list[int]:
    """Eight greedy tokens for each of four prompts, one after the other."""
    prompts = [[*range(start, start + 20)] for start in range(0, 400, 100)]
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    answers = llm.generate(prompts, params, progress=False)
    return [token for answer in answers for token in answer["token_ids"]]


def linear_bytes(llm: LLM) -> int:
    """Bytes of the linears' weights, with their scales."""
    state = llm.engine.model.state_dict()
    return sum(x.nbytes for name, x in state.items() if "_proj.weight" in name)


def spread() -> dict[str, str]:
    """Mean error of weights in each format, of their standard deviation."""
    weight = torch.randn(64, 1024, generator=torch.Generator().manual_seed(0))
    found = {}
    for name, group in (("fp8", 0), ("int8", 0), ("int4", 32), ("int4", 0)):
        method = create_quant_method(QuantConfig(name, group))
        meant = dequantize(*method.quantize(weight), group or 1024)
        error = (meant - weight).pow(2).mean().sqrt()
        label = f"{name}, groups of {group}" if group else f"{name}, whole rows"
        found[label.ljust(22)] = measured(100 * float(error), "%")
    return found
