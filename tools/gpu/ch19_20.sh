#!/usr/bin/env bash
# Chapters 19 and 20 on a machine with a GPU and no network, in under eight minutes.
#
#   bash tools/gpu/ch19_20.sh [OUT]
#
# .gpu/setup.sh, if it is there, installs the GPU libraries and sets PYTHONPATH; else they
# have to be installed. Logs go to OUT (.cache/gpu). The table at the end has a line for
# every part; the exit status is 1 if one failed.
set -uo pipefail
cd "$(dirname "$0")/../.."
out="${1:-${OUT:-.cache/gpu}}"
mkdir -p "$out"
export PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false TRANSFORMERS_VERBOSITY=error
# Of no use to two GPUs, and on some machines not allowed: NVLink's multicast.
export NCCL_NVLS_ENABLE="${NCCL_NVLS_ENABLE:-0}"
# Compiled here and now, so that compile times are what they say.
XDG_CACHE_HOME="$(mktemp -d)"
export XDG_CACHE_HOME TRITON_CACHE_DIR="$XDG_CACHE_HOME/triton"
if [ -f .gpu/setup.sh ]; then
    # shellcheck disable=SC1091
    source .gpu/setup.sh
fi
summary=()
failed=0

part() { # NAME SECONDS COMMAND...
    local name="$1" limit="$2" begin status
    shift 2
    echo "=== $name: $*"
    begin=$(date +%s)
    timeout "$limit" "$@" 2>&1 | tee "$out/$name.txt"
    status=${PIPESTATUS[0]}
    summary+=("$(printf '%-12s rc %-4s %4d s' "$name" "$status" $(($(date +%s) - begin)))")
    [ "$status" -eq 0 ] || failed=1
}

part nvcc 60 python3 tools/nvcc.py
part bench 90 python3 tools/bench_kernels.py --least 0.7
part check_gpu 240 python3 -m minisgl.check_gpu --json "$out/check_gpu.json"
part tests19 150 python3 -m pytest -q -rs -p no:cacheprovider -k "cuda or gpu" \
    tests/test_ch19_kernels.py tests/test_ch20_experts.py
part experts 60 python3 tools/bench_experts.py
part main20 40 python3 stages/ch20-moe/main.py --device cuda
echo "=== summary"
printf '%s\n' "${summary[@]}"
exit "$failed"
