#!/usr/bin/env bash
# Chapter 26 on a machine with a Hopper and no network, in under three minutes.
#
#   bash tools/gpu/ch26.sh [OUT]
#
# flashinfer has to be installed; if it is not and there is a .gpu/setup.sh, it is
# sourced. The tables go to OUT/fp8.txt (.cache/gpu). The exit status is 1 if float8 is
# wrong, or decodes the 8B shape less than 1.2 times as fast as bfloat16.
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
timeout 280 python3 tools/bench_fp8.py --least 1.2 2>&1 | tee "$out/fp8.txt"
exit "${PIPESTATUS[0]}"
