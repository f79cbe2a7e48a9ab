"""What the overlap loop, two ranks and recorded steps of the films did."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode

from minisgl.core import SamplingParams
from minisgl.llm import LLM
from minisgl.message import DetokenizeMsg
from minisgl.scheduler.scheduler import ForwardData, ForwardInput
from tools.stagekit import model_path
from tools.videos.recorders import stage_file


class _Turns(LLM):
    """Notes for each turn of the loop what is launched, and what is read.

    Requests are letters. When read, a capital is a last token, and a dash one
    that nobody wants any more.
    """

    def step(self, data: ForwardData | None) -> ForwardData | None:
        self.turns.append({"launch": None, "read": None})
        return super().step(data)

    def _launch(self, forward_input: ForwardInput | None) -> ForwardData | None:
        data = super()._launch(forward_input)
        if data is not None:
            batch = data.forward_input.batch
            self.batches += 1
            names = "".join(map(self._name, sorted(r.uid for r in batch.reqs)))
            launch = [self.batches, batch.phase, names]
            self.turns[-1]["launch"] = launch
        return data

    def _process_last_data(self, last_data: ForwardData | None) -> None:
        if last_data is not None:
            reqs = last_data.forward_input.batch.reqs
            self._read = sorted(req.uid for req in reqs)
        super()._process_last_data(last_data)

    def offline_send_result(self, reply: list[DetokenizeMsg]) -> None:
        super().offline_send_result(reply)
        last = {msg.uid: msg.finished for msg in reply}
        names = {u: self._name(u) for u in self._read}
        marks = [
            "-" if u not in last else n.upper() if last[u] else n
            for u, n in names.items()
        ]
        self.turns[-1]["read"] = "".join(marks)

    def _name(self, uid: int) -> str:
        return chr(ord("a") + uid - self.first)

    def forget(self) -> None:
        """Start anew; the next request is a."""
        self.turns: list[dict[str, Any]] = []
        self.batches, self.first = 0, self._next_uid


def overlap() -> dict[str, Any]:
    """Chapter 11's three requests, turn by turn, without overlap and with it."""
    prompts = [[*range(start, start + 20)] for start in (0, 50, 100)]
    limits = [SamplingParams(max_tokens=n) for n in (16, 8, 4)]
    path, found = str(model_path("qwen3-tiny")), {}
    for name, on in (("off", False), ("on", True)):
        llm = _Turns(path, dtype="float32", device="cpu", overlap=on)
        llm.forget()
        first = llm.generate(prompts[:1], SamplingParams(max_tokens=6))
        # From here on the sixth token of request a is an end token.
        llm.eos_token_ids = frozenset(first[0]["token_ids"][5:])
        llm.forget()
        answers = llm.generate(prompts, limits)
        tokens = [len(answer["token_ids"]) for answer in answers]
        found[name] = {"turns": llm.turns, "tokens": tokens}
    return found


def parallel() -> dict[str, Any]:
    """A layer's MLP cut over two ranks, by hand, and chapter 16's table."""
    folder = model_path("qwen3-tiny")
    weights: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        weights |= load_file(file)
    gate, up, down = (
        weights[f"model.layers.0.mlp.{n}_proj.weight"].float()
        for n in ("gate", "up", "down")
    )
    x = torch.linspace(-1, 1, gate.shape[1])
    half = gate.shape[0] // 2

    def mlp(part: slice) -> torch.Tensor:
        return down[:, part] @ (F.silu(gate[part] @ x) * (up[part] @ x))

    parts = [mlp(slice(None, half)), mlp(slice(half, None))]
    whole = mlp(slice(None))
    assert torch.allclose(parts[0] + parts[1], whole, atol=1e-5)
    helpers = stage_file("ch16", "helpers")
    params = SamplingParams(max_tokens=24, ignore_eos=True)
    prompts = [[*range(start, start + 12)] for start in (0, 50, 100)]
    ranks = [
        helpers.run_ranks(folder, n, prompts, params)[0] for n in (1, 2, 4)
    ]
    config = json.loads((folder / "config.json").read_text())
    return {
        "heads": config["num_attention_heads"],
        "kv_heads": config["num_key_value_heads"],
        "hidden": gate.shape[1],
        "middle": gate.shape[0],
        "partial": [[round(float(v), 1) for v in p[:3]] for p in parts],
        "whole": [round(float(v), 1) for v in whole[:3]],
        "ranks": [1, 2, 4],
        "weights_kib": [round(rank.weights) for rank in ranks],
        "kv_kib": [rank.kv_token for rank in ranks],
        "same_tokens": all(r.answers == ranks[0].answers for r in ranks),
    }


def graph() -> dict[str, Any]:
    """Chapter 18's steps with their padding, and what a forgotten copy does."""
    noted = stage_file("ch18", "noted")
    prompts = [[*range(start, start + 20)] for start in range(0, 250, 50)]
    limits = [
        SamplingParams(max_tokens=n, ignore_eos=True) for n in (12, 10, 8, 8, 5)
    ]
    settings: dict[str, Any] = {
        "device": "cpu",
        "dtype": "float32",
        "max_seq_len_override": 256,
        "cuda_graph_bs": [1, 2, 4, 8],
    }
    path = str(model_path("qwen3-tiny"))

    def answers(llm: Any) -> list[list[int]]:
        return [a["token_ids"] for a in llm.generate(prompts, limits)]

    llm = noted.NotedLLM(path, **settings)
    expected = answers(llm)
    found: dict[str, Any] = {
        "sizes": llm.engine.graph_runner.graph_bs_list,
        "steps": [*llm.steps],
        "layers": llm.engine.ctx.kv_cache.num_layers,
        "operators": _operators(llm.engine.graph_runner.graph_map[4].replay),
    }
    with noted.forgetting("input_ids"):
        wrong = answers(noted.NotedLLM(path, **settings))
    equal = sum(a == b for a, b in zip(wrong, expected, strict=True))
    return found | {"equal_if_forgotten": equal, "answers": len(expected)}


class _Count(TorchDispatchMode):
    """Counts the operators of torch that are called inside."""

    calls = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.calls += 1
        return func(*args, **(kwargs or {}))


def _operators(run: Callable[[], None]) -> int:
    """How many operators a function calls."""
    count = _Count()  # type: ignore[no-untyped-call]
    with count:
        run()
    return count.calls
