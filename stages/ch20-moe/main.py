"""Which experts read which tokens, and what that costs."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[i]) for i in (2, 0)]

from helpers import Seen, answers_of, crowd, question_ids, renormalize, shares

from minisgl.llm import LLM
from minisgl.models import ModelConfig
from minisgl.utils import cached_load_hf_config
from tools.stagekit import model_path, run, transformers_answer


def main(model: str = "qwen3-moe-tiny", device: str = "cpu") -> None:
    """Show the routing of a prefill, compare answers, then count and time."""
    path = model_path(model)
    llm = LLM(str(path), device=device, dtype="float32", num_page_override=512)
    config = ModelConfig.from_hf(cached_load_hf_config(str(path)))
    print(f"experts: {shares(llm.engine.model, config)}")
    prompts = question_ids(path)
    with Seen(llm, config) as seen:
        answers = answers_of(llm, prompts)
    tokens, experts = sum(map(len, prompts)), config.num_experts
    print(f"\n{tokens} tokens, each to {config.num_experts_per_tok} experts")
    print("layer  tokens of each expert".ljust(7 + 5 * experts), "blocks of 16")
    for layer, (counts, blocks) in enumerate(seen.prefill()):
        row = "".join(f"{count:5}" for count in counts)
        print(f"{layer:5}  {row} {blocks}")

    print("\n12 tokens more, as transformers")
    wanted = [transformers_answer(path, ids, 12, (), device) for ids in prompts]
    kept = config.norm_topk_prob
    print(f"norm_topk_prob {kept!s:6}{answers == wanted}")
    renormalize(llm.engine.model, not kept)
    print(f"norm_topk_prob {not kept!s:6}{answers_of(llm, prompts) == wanted}")

    print("\n128 experts, 8 a token")
    print("tokens  experts read  filled  time of a layer")
    for tokens in (1, 8, 64, 512):
        print(f"{tokens:6}{crowd(tokens, device)}")


if __name__ == "__main__":
    run(main)
