#!/usr/bin/env bash
# Chapter 28 on a machine with a GPU and no network, in under three minutes.
#
#   bash tools/gpu/ch28.sh [OUT]
#
# flashinfer and flash-attn have to be installed; if they are not and there is a
# .gpu/setup.sh, it is sourced. Logs go to OUT (.cache/gpu). The exit status is 1 if a
# part failed: tokens that differ, or a reload of 8,000 tokens that takes more than a third
# of computing them.
set -uo pipefail
cd "$(dirname "$0")/../.."
needs="flashinfer, flash_attn"
# shellcheck source=tools/gpu/parts.sh
source tools/gpu/parts.sh "$@"

bench() { # ARGUMENTS...: the command as a first line, then its output
    echo "\$ python tools/bench_hicache.py --device cuda $*"
    python3 tools/bench_hicache.py --device cuda "$@"
}
export -f bench

short=16,32,64,128,256,512,1024,2048,4096
part tests28 60 python3 -m pytest -q -rs -p no:cacheprovider -k gpu \
    tests/test_ch28_engine.py
part hicache-8b 60 bash -c "bench --shape qwen3-8b --lengths 8000 --gib 4 --most 0.333"
part hicache-8b-new 60 bash -c \
    "bench --shape qwen3-8b --lengths 8000 --new 2048 --gib 4 --policy write_back"
part hicache-0.6b 60 bash -c "bench --shape qwen3-0.6b --lengths $short --gib 4"
echo "=== table"
{
    cat "$out/hicache-8b.txt" "$out/hicache-8b-new.txt" "$out/hicache-0.6b.txt"
    printf '%s\n' "${summary[@]}"
} | tee "$out/ch28.txt"
exit "$failed"
