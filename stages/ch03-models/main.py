"""A model out of its folder: what it states, what it stores, what it says."""

import sys
from pathlib import Path
from pprint import pprint
from time import perf_counter as now

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from minisgl import models, utils
from minisgl.core import Batch, Context, Req, SamplingParams
from minisgl.layers import set_rope_device
from tools import stagekit as kit


def whole(ids: list[int], device: torch.device) -> Batch:
    """A batch of one sequence, from its first token on."""
    host = torch.tensor(ids, dtype=torch.int32)
    batch = Batch([Req(host, 0, 0, 1, 0, SamplingParams())], "prefill")
    batch.input_ids = host.to(device)
    batch.positions = torch.arange(len(ids), device=device)
    return batch


@torch.inference_mode()
def main(
    model: str = "qwen3-tiny",
    prompt: str = "Why is decoding slow?",
    device: str = "cpu",
    dtype: str = "auto",
) -> None:
    """Load MODEL, then answer PROMPT and keep nothing between two steps."""
    path, place = str(kit.model_path(model)), utils.pick_device(device)
    stated = utils.cached_load_hf_config(path)
    pprint(config := models.ModelConfig.from_hf(stated))
    kind = utils.resolve_dtype(dtype, stated)
    set_rope_device(place)
    with torch.device("meta"), utils.torch_dtype(kind):
        llm = models.create_model(config)
    start, state = now(), llm.state_dict()
    models.load_model_weight(llm, path, place, kind)
    print(len(state), "weights in", kit.measured(1000 * (now() - start), "ms"))
    pprint([(name, [*w.shape]) for name, w in state.items()][1:5])
    tokens = kit.encode_chat(utils.load_tokenizer(path), prompt)
    ids, ends, work = list(tokens), utils.load_eos_token_ids(path), 0
    while len(ids) < len(tokens) + 64 and not (work and ids[-1] in ends):
        with Context().forward_batch(whole(ids, place)):
            logits = llm.forward()
        ids, work = [*ids, int(logits[-1].argmax())], work + len(logits)
    print("answer", *(answer := ids[len(tokens) :]))
    theirs = kit.transformers_answer(path, tokens, 64, ends, device, kind)
    print("equal to transformers:", "yes" if answer == theirs else "no")
    print(f"{work:,} rows of logits computed for {len(answer)} tokens")


if __name__ == "__main__":
    kit.run(main)
