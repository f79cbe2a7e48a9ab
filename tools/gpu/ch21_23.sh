#!/usr/bin/env bash
# Chapters 21 and 23 on a machine with a GPU and no network, in about ten minutes.
#
#   bash tools/gpu/ch21_23.sh [OUT] [PART...]
#
# Parts: roof, levers, prompts, online, ablation; all of them unless some are named.
# flashinfer has to be installed; if it is not and there is a .gpu/setup.sh, it is sourced.
# Logs go to OUT (.cache/gpu). The exit status is 1 if a part failed.
set -uo pipefail
cd "$(dirname "$0")/../.."
needs="flashinfer"
# shellcheck source=tools/gpu/parts.sh
source tools/gpu/parts.sh "$@"
export COLUMNS=110

online() { # a server with random weights, and the load of chapter 21
    local folder server status
    folder="$(mktemp -d)"
    python3 - "$folder" <<'PYTHON'
import sys
from pathlib import Path

from minisgl.benchmark.shapes import SHAPES, write_shape

write_shape(Path(sys.argv[1]), SHAPES["qwen3-0.6b"])
PYTHON
    python3 -m minisgl --model "$folder" --dummy-weight --page-size 16 \
        --max-seq-len-override 4096 --max-prefill-length 2048 >"$folder/server.log" 2>&1 &
    server=$!
    for _ in $(seq 120); do
        curl -sf http://127.0.0.1:1919/health >/dev/null 2>&1 && break
        sleep 0.5
    done
    python3 -m minisgl.benchmark online --requests 128 --rate inf --rate 80% \
        --tokenizer "$folder"
    status=$?
    kill "$server" 2>/dev/null
    wait "$server" 2>/dev/null
    [ "$status" -eq 0 ] || tail -n 5 "$folder/server.log"
    rm -rf "$folder"
    return "$status"
}
export -f online

part roof 120 python3 -m minisgl.benchmark roofline --shape qwen3-0.6b \
    --set page_size=16 --set max_seq_len_override=4096 --set prefills_in_a_row=0 \
    --set max_extend_tokens=16384
part levers 240 python3 tools/bench_levers.py --rounds 1
part prompts 60 python3 tools/bench_prefill.py
part online 100 bash -c online
part ablation 420 python3 -m minisgl.benchmark ablation --shape qwen3-0.6b \
    --requests 64 --longest 256 --rounds 1
echo "=== table"
printf '%s\n' "${summary[@]}"
exit "$failed"
