#!/usr/bin/env bash
# Chapters 17 and 18 on a machine with a GPU and no network, in under six minutes.
#
#   bash tools/gpu/ch17_18.sh [OUT]
#
# .gpu/setup.sh, if it is there, installs the GPU libraries and sets PYTHONPATH; else they
# have to be installed. Logs go to OUT (.cache/gpu). The table at the end has a line for
# every part; the exit status is 1 if one failed.
set -uo pipefail
cd "$(dirname "$0")/../.."
out="${1:-${OUT:-.cache/gpu}}"
mkdir -p "$out"
export PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false TRANSFORMERS_VERBOSITY=error
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

models() {
    local name
    for name in qwen3-tiny qwen2-tiny llama3-tiny; do
        python3 tools/models.py path "$name" || return 1
    done
}
export -f models

part models 40 bash -c models
part contract 90 python3 -m pytest -q -rs -p no:cacheprovider \
    tests/test_ch17_contract.py \
    tests/test_ch18_graph.py::test_a_cuda_graph_sees_its_own_tensors_only
part check 150 python3 tools/gpu/check_attention.py
part attention 60 python3 tools/bench_attention.py
part graph 90 python3 tools/bench_graph.py --sizes 1,8,64,256
part main17 40 python3 stages/ch17-gpu-attention/main.py --device cuda
part main18 40 python3 stages/ch18-cuda-graph/main.py --device cuda
echo "=== summary"
printf '%s\n' "${summary[@]}"
exit "$failed"
