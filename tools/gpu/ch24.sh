#!/usr/bin/env bash
# Chapter 24 on a machine with a GPU and no network, in about six minutes.
#
#   bash tools/gpu/ch24.sh [OUT]
#
# flashinfer and flash-attn have to be installed; if they are not and there is a
# .gpu/setup.sh, it is sourced. Logs go to OUT (.cache/gpu). The table at the end has a
# line for every part; the exit status is 1 if one failed.
set -uo pipefail
cd "$(dirname "$0")/../.."
# NVLink's multicast: of no use to two GPUs, and on some machines not allowed.
export NCCL_NVLS_ENABLE="${NCCL_NVLS_ENABLE:-0}"
# Everything is compiled in this run, so that it is known to compile and how long it takes.
XDG_CACHE_HOME="$(mktemp -d)"
export XDG_CACHE_HOME TRITON_CACHE_DIR="$XDG_CACHE_HOME/triton"
needs="flashinfer, flash_attn"
# shellcheck source=tools/gpu/parts.sh
source tools/gpu/parts.sh "$@"

part check 90 python3 -m minisgl.check_gpu --only "delta" --json "$out/check_delta.json"
part models 60 python3 tools/models.py path qwen3.5-tiny
part tests 150 python3 -m pytest -q -rs -p no:cacheprovider -k "gpu" \
    tests/test_ch24_hybrid.py
part main24 60 python3 stages/ch24-hybrid/main.py --device cuda
part rule 90 python3 tools/bench_delta.py
part dense 150 python3 -m minisgl.benchmark offline --shape qwen3.5-0.8b \
    --out "$out/qwen3.5-0.8b.md"
part roof 120 python3 -m minisgl.benchmark roofline --shape qwen3.5-0.8b
part experts 240 python3 -m minisgl.benchmark offline --shape qwen3.5-35b-a3b \
    --rounds 1 --out "$out/qwen3.5-35b-a3b.md"
echo "=== table"
printf '%s\n' "${summary[@]}"
exit "$failed"
