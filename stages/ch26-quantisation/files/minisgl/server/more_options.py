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
}
