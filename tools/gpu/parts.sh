# Sourced by the scripts beside it, with their arguments, from the root of the repository:
# the folder for logs, then the parts to run if not all of them.
#
# needs: libraries that have to be installed, as Python's import takes them; if they are
# not and there is a .gpu/setup.sh, that is sourced. Sets `out`, and what `part` writes to:
# `summary`, a line for every part, and `failed`, 1 if one of them failed.
# shellcheck shell=bash
out="${1:-${OUT:-.cache/gpu}}"
wanted=" ${*:2} "
mkdir -p "$out"
export PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false TRANSFORMERS_VERBOSITY=error
export LOG_LEVEL=warning TQDM_DISABLE=1
if [ -f .gpu/setup.sh ] && ! python3 -c "import $needs" 2>/dev/null; then
    set -- # a sourced file would take ours for its own
    # shellcheck disable=SC1091
    source .gpu/setup.sh
fi
summary=()
failed=0

part() { # NAME SECONDS COMMAND...
    local name="$1" limit="$2" begin status
    shift 2
    [[ "$wanted" == "  " || "$wanted" == *" $name "* ]] || return 0
    echo "=== $name: $*"
    begin=$(date +%s)
    timeout "$limit" "$@" 2>&1 | tee "$out/$name.txt"
    status=${PIPESTATUS[0]}
    summary+=("$(printf '%-5s%-14s%4d s  %s' "$([ "$status" -eq 0 ] && echo ok || echo FAIL)" \
        "$name" $(($(date +%s) - begin)) "$(tail -n 1 "$out/$name.txt" | cut -c 1-60)")")
    [ "$status" -eq 0 ] || failed=1
}
