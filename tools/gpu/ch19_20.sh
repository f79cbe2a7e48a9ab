#!/usr/bin/env bash
# Chapters 19 and 20 on a machine with a GPU and no network, in about eight minutes.
#
#   bash tools/gpu/ch19_20.sh [OUT]
#
# flashinfer and flash-attn have to be installed; if they are not and there is a
# .gpu/setup.sh, it is sourced. Logs go to OUT (.cache/gpu). The table at the end has a
# line for every part; the exit status is 1 if one failed. With two GPUs the self-check
# compares two ranks as well.
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

part nvcc 60 python3 tools/nvcc.py
part bench 90 python3 tools/bench_kernels.py --least 0.7
part check_gpu 240 python3 -m minisgl.check_gpu --json "$out/check_gpu.json"
part tests 150 python3 -m pytest -q -rs -p no:cacheprovider -k "cuda or gpu" \
    tests/test_ch19_kernels.py tests/test_ch20_experts.py
part experts 60 python3 tools/bench_experts.py
part models 30 python3 tools/models.py path qwen3-moe-tiny
part main20 40 python3 stages/ch20-moe/main.py --device cuda
echo "=== table"
printf '%s\n' "${summary[@]}"
exit "$failed"
