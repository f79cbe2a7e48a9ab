#!/usr/bin/env bash
# Chapter 25 on a machine with a GPU and no network, in about three minutes.
#
#   bash tools/gpu/ch25.sh [OUT]
#
# xgrammar has to be installed, and the models of `make models` be there. Logs go to OUT
# (.cache/gpu). The last lines say what steps with forms cost on the device.
set -uo pipefail
cd "$(dirname "$0")/../.."
out="${1:-${OUT:-.cache/gpu}}"
mkdir -p "$out"
export PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false TRANSFORMERS_VERBOSITY=error
export LOG_LEVEL=warning TQDM_DISABLE=1
failed=0
for dtype in bfloat16 float32; do
    command=(python3 tools/bench_structured.py --device cuda --dtype "$dtype")
    echo "\$ ${command[*]}" | tee "$out/structured-$dtype.txt"
    timeout 150 "${command[@]}" 2>&1 | tee -a "$out/structured-$dtype.txt"
    [ "${PIPESTATUS[0]}" -eq 0 ] || failed=1
done
exit "$failed"
