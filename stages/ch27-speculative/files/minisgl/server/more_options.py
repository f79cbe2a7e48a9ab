"""The options of what not every server uses, in groups of their own."""

from __future__ import annotations

from minisgl.quant import SUPPORTED_KV_DTYPES, SUPPORTED_QUANTIZATION
from minisgl.server import checks
from minisgl.server.option import Option

_QUANTIZATION = SUPPORTED_QUANTIZATION.supported_names()

MORE_GROUPS = {
    "Quantisation": [
        Option(
            "quantization",
            str | None,
            "--quantization",
            "Quantise the weights while they are loaded: "
            f"{', '.join(_QUANTIZATION)}. A checkpoint that is quantised is "
            "recognised without it.",
        ),
        Option(
            "kv_cache_dtype",
            str,
            "--kv-cache-dtype",
            "What keys and values are kept in: "
            f"{', '.join(SUPPORTED_KV_DTYPES)}. auto is what is computed in.",
            check=checks.one_of(*SUPPORTED_KV_DTYPES),
        ),
    ],
    "Speculation": [
        Option(
            "speculative",
            str | None,
            "--speculative",
            "Who guesses tokens that one step then checks: ngram, the text "
            "itself, or draft, a smaller model. If not given, nobody.",
        ),
        Option(
            "speculative_tokens",
            int,
            "--speculative-tokens",
            "Most tokens to guess for a request in a step.",
        ),
        Option(
            "speculative_draft_model",
            str | None,
            "--speculative-draft-model",
            "The smaller model: a folder or the id of one with the same "
            "tokenizer.",
        ),
        Option(
            "speculative_ngram_min",
            int,
            "--speculative-ngram-min",
            "How many tokens must agree with the end of a text.",
        ),
        Option(
            "speculative_ngram_max",
            int,
            "--speculative-ngram-max",
            "How many are compared at most.",
        ),
    ],
}
