"""The options of the command line, in the groups that --help shows."""

from __future__ import annotations

from typing import Any, NamedTuple

from minisgl.attention import SUPPORTED_ATTENTION_BACKENDS
from minisgl.kvcache import SUPPORTED_CACHE_MANAGER
from minisgl.moe import SUPPORTED_MOE_BACKENDS
from minisgl.server import checks


class Option(NamedTuple):
    """An option: which setting it is, of which type, its names, what it does.

    check: returns the value as it is to be, or raises typer.BadParameter.
    env: the variable of the environment that stands in for it.
    """

    setting: str
    kind: Any
    names: str
    text: str
    check: checks.Check | None = None
    env: str | None = None


# As in utils/torch_utils.py, which needs torch.
_DTYPES = ("auto", "float32", "bfloat16", "float16")
_BACKENDS = ("auto", *SUPPORTED_ATTENTION_BACKENDS.supported_names())
_MOE_BACKENDS = ("auto", *SUPPORTED_MOE_BACKENDS.supported_names())
_CACHES = ("auto", *SUPPORTED_CACHE_MANAGER.supported_names())

GROUPS = {
    "Model": [
        Option(
            "model_path",
            str,
            "--model --model-path",
            "A folder with config.json, a tokenizer and safetensors files, or "
            "the id of a model on the Hugging Face hub.",
        ),
        Option(
            "dtype",
            str,
            "--dtype",
            f"What to compute in: {', '.join(_DTYPES)}. auto is what "
            "config.json states.",
            check=checks.one_of(*_DTYPES),
        ),
        Option(
            "device",
            str,
            "--device",
            "auto, cpu, cuda or cuda:N. auto is a GPU if there is one.",
            check=checks.device,
        ),
        Option(
            "tp_size",
            int,
            "--tp --tensor-parallel-size",
            "Over how many ranks the model is cut.",
            check=checks.size,
        ),
        Option(
            "attention_backend",
            str,
            "--attention-backend --attn",
            f"What computes attention: {', '.join(_BACKENDS)}. Two names with "
            "a comma between are for prefill and for decode.",
            check=checks.attention_backend,
        ),
        Option(
            "moe_backend",
            str,
            "--moe-backend",
            f"What computes layers of experts: {', '.join(_MOE_BACKENDS)}.",
            check=checks.one_of(*_MOE_BACKENDS),
        ),
        Option(
            "max_seq_len_override",
            int | None,
            "--max-seq-len-override",
            "A shorter context than the model's own, in tokens.",
        ),
        Option(
            "use_dummy_weight",
            bool,
            "--dummy-weight",
            "Random weights, to measure without a checkpoint.",
        ),
    ],
    "Scheduling": [
        Option(
            "max_running_req",
            int,
            "--max-running-requests",
            "Most requests in one batch.",
        ),
        Option(
            "max_extend_tokens",
            int,
            "--max-prefill-length",
            "Most prompt tokens in one step.",
        ),
        Option(
            "prefills_in_a_row",
            int,
            "--prefills-in-a-row",
            "After so many prefill batches running requests get a decode "
            "batch. With 0 they wait until no prompt does.",
        ),
        Option(
            "no_overlap",
            bool,
            "--no-overlap",
            "Launch a batch only once the last one's tokens are read.",
        ),
        Option(
            "cuda_graph_max_bs",
            int | None,
            "--cuda-graph-max-bs --graph",
            "Most requests of a decode step that is recorded as a CUDA graph. "
            "With 0 none is. If not given: 256, or what memory allows; on a "
            "CPU 0.",
        ),
    ],
    "Memory and cache": [
        Option(
            "memory_ratio",
            float,
            "--memory-ratio",
            "Share of the free memory for weights and KV pool, up to 1.",
        ),
        Option(
            "num_page_override",
            int | None,
            "--num-pages",
            "Pages of the KV pool, instead of what memory allows.",
        ),
        Option("page_size", int, "--page-size", "Tokens a page holds."),
        Option(
            "cache_type",
            str,
            "--cache-type",
            f"Which prefix cache: {', '.join(_CACHES)}.",
            check=checks.one_of(*_CACHES),
        ),
    ],
    "Server": [
        Option(
            "server_host",
            str,
            "--host",
            "The address to listen at. 0.0.0.0 is all of this machine.",
        ),
        Option(
            "server_port",
            int,
            "--port",
            "The port to listen at, up to 65535. 0 takes a free one.",
        ),
        Option(
            "num_tokenizer",
            int,
            "--num-tokenizer",
            "Tokenizer processes beside the detokenizer. With 0 that one does "
            "both.",
        ),
        Option(
            "served_model_name",
            str | None,
            "--served-model-name",
            "What clients call the model, instead of its path.",
        ),
        Option(
            "api_key",
            str | None,
            "--api-key",
            "The key that clients must send. Better not on the command line: "
            "other users of the machine can read it.",
            check=checks.key,
            env="MINISGL_API_KEY",
        ),
        Option(
            "root_path",
            str,
            "--root-path",
            "The path under which a proxy offers this server.",
            check=checks.root,
        ),
        Option(
            "cors_origins",
            list[str],
            "--cors-origin",
            "Web pages of this origin may call the server. * is all. Can be "
            "given several times.",
        ),
        Option(
            "num_threads",
            int | None,
            "--threads",
            "Threads of a scheduler. If not given: OMP_NUM_THREADS, or the "
            "cores divided by the ranks.",
        ),
        Option(
            "version",
            bool,
            "--version",
            "Say the version and end.",
            check=checks.version,
        ),
    ],
    "Shell": [
        Option(
            "shell",
            bool,
            "--shell",
            "Chat here in the terminal. Nothing listens.",
        ),
        Option(
            "shell_max_tokens",
            int,
            "--shell-max-tokens",
            "Most tokens of an answer.",
        ),
        Option(
            "shell_temperature",
            float,
            "--shell-temperature",
            "How freely it answers. 0 takes the likeliest token.",
        ),
    ],
    "Logging": [
        Option(
            "log_level",
            str,
            "--log-level",
            f"What to log, and all that is worse: {', '.join(checks.LEVELS)}.",
            check=checks.level,
            env="LOG_LEVEL",
        ),
        Option(
            "log_requests",
            bool,
            "--log-requests",
            "Print a line of JSON for every answer: its number, tokens, times, "
            "and how it ended. Nobody's text is in it.",
        ),
        Option(
            "log_prompts",
            bool,
            "--log-prompts",
            "The same with the text of prompts and answers.",
        ),
        Option(
            "silent_output",
            bool,
            "--silent-output",
            "The processes behind the API server log warnings only.",
        ),
    ],
}
