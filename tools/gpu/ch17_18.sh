#!/usr/bin/env bash
# Chapters 17 and 18 on a machine with a GPU and no network, in under six minutes.
#
#   bash tools/gpu/ch17_18.sh [OUT]
#
# flashinfer and flash-attn have to be installed; if they are not and there is a
# .gpu/setup.sh, it is sourced. Logs go to OUT (.cache/gpu). The table at the end has a
# line for every check and every part; the exit status is 1 if one failed.
set -uo pipefail
cd "$(dirname "$0")/../.."
out="${1:-${OUT:-.cache/gpu}}"
mkdir -p "$out"
export PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false TRANSFORMERS_VERBOSITY=error
export LOG_LEVEL=error TQDM_DISABLE=1
if [ -f .gpu/setup.sh ] && ! python3 -c "import flashinfer, flash_attn" 2>/dev/null; then
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
    summary+=("$(printf '%-5s%-14s%4d s  %s' "$([ "$status" -eq 0 ] && echo ok || echo FAIL)" \
        "$name" $(($(date +%s) - begin)) "$(tail -n 1 "$out/$name.txt" | cut -c 1-60)")")
    [ "$status" -eq 0 ] || failed=1
}

models() {
    local name
    for name in qwen3-tiny qwen2-tiny llama3-tiny; do
        python3 tools/models.py path "$name" || return 1
    done
}
export -f models

part models 60 bash -c models
part contract 120 python3 -m pytest -q -rs -p no:cacheprovider \
    tests/test_ch17_contract.py \
    tests/test_ch18_graph.py::test_a_cuda_graph_sees_its_own_tensors_only
part check 200 python3 tools/gpu/check_attention.py
part attention 90 python3 tools/bench_attention.py
part graph 120 python3 tools/bench_graph.py --sizes 1,8,64,256
part main17 40 python3 stages/ch17-gpu-attention/main.py --device cuda
part main18 40 python3 stages/ch18-cuda-graph/main.py --device cuda
echo "=== table"
grep -E '^(ok|FAIL|#) ' "$out/check.txt"
printf '%s\n' "${summary[@]}"
exit "$failed"
