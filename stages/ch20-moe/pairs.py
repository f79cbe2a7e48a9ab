"""The model with experts under every value of every other setting."""

import os
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2])]

os.environ |= {"LOG_LEVEL": "error", "TQDM_DISABLE": "1"}

import torch

from tests import pairs


def main() -> None:
    """Let each engine answer six prompts; compare with transformers."""
    setups = pairs.cover_experts()
    with tempfile.TemporaryDirectory() as out, torch.inference_mode():
        wrong = pairs.show(setups, Path(out))
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
