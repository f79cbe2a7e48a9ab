#!/usr/bin/env bash
# Chapter 27 on a machine with a GPU and no network, in about three minutes.
#
#   bash tools/gpu/ch27.sh [OUT]
#
# Drafts checked by FlashInfer and by recorded steps in bfloat16 (main), and by torch in
# float32, where answers must be equal (bench, of a tiny model). Logs go to OUT.
set -uo pipefail
cd "$(dirname "$0")/../.."
needs="flashinfer"
# shellcheck source=tools/gpu/parts.sh
source tools/gpu/parts.sh "$@"

part models 30 python3 tools/models.py path qwen3-tiny
part main27 90 python3 stages/ch27-speculative/main.py --device cuda
part bench27 90 python3 tools/bench_speculative.py --model qwen3-tiny --device cuda
echo "=== table"
printf '%s\n' "${summary[@]}"
exit "$failed"
