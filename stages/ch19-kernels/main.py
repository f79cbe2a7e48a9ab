"""The kernels on a simulated GPU: against torch, and under a whole engine."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[i]) for i in (2, 0)]

import torch
from helpers import Counted, index_case, question_ids, store_case, timed

from minisgl.core import SamplingParams
from minisgl.kernel import fast_compare_key, simulated_kernels
from minisgl.kernel.radix import fast_compare_key_torch
from minisgl.llm import LLM
from tools.stagekit import model_path, run, transformers_answer

CASES = [
    ("store", store_case(2, 64, torch.float32)),
    ("store", store_case(8, 128, torch.bfloat16)),
    ("store", store_case(1, 3, torch.bfloat16)),
    ("index", index_case(1024, torch.bfloat16)),
    ("index", index_case(4096, torch.float32)),
    ("index", index_case(1024, torch.bfloat16, (20, 50))),
]


def main(model: str = "qwen3-tiny") -> None:
    """Compare each kernel with torch, time the C++, then generate."""
    torch.manual_seed(0)
    print("kernel  row     word  warps  ids    equals torch")
    with simulated_kernels():
        for name, case in CASES:
            print(f"{name:6}", case())

    key = torch.arange(512, dtype=torch.int32)
    print("\ntwo keys of 512 tokens")
    for compare in (fast_compare_key, fast_compare_key_torch):
        print(f"  {compare.__name__:23} {timed(compare, key, key.clone())}")

    path = model_path(model)
    llm = LLM(str(path), device="cpu", dtype="float32", num_page_override=512)
    prompts = question_ids(path)
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    with simulated_kernels(), Counted() as ran:
        answers = llm.generate(prompts, params, progress=False)
    print(f"\n{len(prompts)} prompts, {ran.steps(llm)} steps:", ran)
    for ids, answer in zip(prompts, answers, strict=True):
        same = answer["token_ids"] == transformers_answer(path, ids, 12, ())
        print(f"  {len(ids):3} tokens, 12 more: as transformers {same}")


if __name__ == "__main__":
    run(main)
