"""Every pair of settings that goes together, in as few engines as it takes."""

import os
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2])]

# What engines and transformers have to say beside is not of interest here.
os.environ |= {"LOG_LEVEL": "error", "TQDM_DISABLE": "1"}

import torch

from tests import pairs


def main() -> None:
    """Let each engine answer six prompts; compare with transformers."""
    setups = pairs.cover(pairs.MODELS)
    met = set().union(*map(pairs.pairs_of, setups))
    print(pairs.line(pairs.Setup(*pairs.Setup._fields)), "tokens", sep="")
    total = wrong = 0
    with tempfile.TemporaryDirectory() as out, torch.inference_mode():
        for setup, ranks in pairs.run_all(setups, Path(out)):
            answers = ranks[0]["answers"]
            found = pairs.differences(setup, answers)
            if any(noted["answers"] != answers for noted in ranks):
                found.append("ranks differ")
            count = sum(map(len, answers))
            total, wrong = total + count, wrong + bool(found)
            text = "; ".join(found) or f"{count} equal"
            print(pairs.line(setup), text, sep="", flush=True)
    print(f"{len(setups)} engines, {len(met)} pairs, {total} tokens")
    print("wrong:", wrong or "none")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
