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
needs="flashinfer, flash_attn"
# shellcheck source=tools/gpu/parts.sh
source tools/gpu/parts.sh "$@"
export LOG_LEVEL=error

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
