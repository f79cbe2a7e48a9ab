#!/usr/bin/env bash
# Chapter 27 on a machine with a GPU and no network, in about three minutes.
#
#   bash tools/gpu/ch27.sh [OUT]
#
# Drafts checked by FlashInfer and by recorded steps in bfloat16 (main), and by torch in
# float32, where answers must be equal (bench, of a tiny model). Logs go to OUT.
set -uo pipefail
cd "$(dirname "$0")/../.."
out="${1:-${OUT:-.cache/gpu}}"
mkdir -p "$out"
export PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false TRANSFORMERS_VERBOSITY=error
export LOG_LEVEL=warning TQDM_DISABLE=1
if [ -f .gpu/setup.sh ] && ! python3 -c "import flashinfer" 2>/dev/null; then
    # shellcheck disable=SC1091
    source .gpu/setup.sh
fi
failed=0

part() { # NAME SECONDS COMMAND...
    local name="$1" limit="$2"
    shift 2
    echo "=== $name: $*"
    timeout "$limit" "$@" 2>&1 | tee "$out/$name.txt"
    [ "${PIPESTATUS[0]}" -eq 0 ] || { echo "FAIL $name"; failed=1; }
}

part models 30 python3 tools/models.py path qwen3-tiny
part main27 90 python3 stages/ch27-speculative/main.py --device cuda
part bench27 90 python3 tools/bench_speculative.py --model qwen3-tiny --device cuda
exit "$failed"
