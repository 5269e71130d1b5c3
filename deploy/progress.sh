# How far a script is, for people who wait: `. deploy/progress.sh`, `progress_of TOTAL`, then `step WHAT COMMAND...`.
# On a terminal one line that counts the seconds and shows what the command says last; elsewhere plain lines, one when a
# step begins, one when it ends, and one a minute between. What a failed command said is printed, and kept.
# A script that is one part of a longer way gets PROGRESS_DONE and PROGRESS_TOTAL from the one that calls it.

working=

progress_of() {
    steps=${PROGRESS_TOTAL:-$1}
    step=${PROGRESS_DONE:-0}
}

# For traps: ends what a step runs, which a Ctrl-C does not reach by itself.
progress_stop() { [ -z "$working" ] || kill "$working" 2>/dev/null || true; }

# step WHAT COMMAND...: runs it; its exit code.
step() {
    step=$((step + 1))
    title="[$step of $steps] $1"
    shift
    said=$(mktemp)
    began=$(date +%s)
    minutes=0
    "$@" >"$said" 2>&1 &
    working=$!
    [ -t 2 ] || printf '%s\n' "$title" >&2
    while kill -0 "$working" 2>/dev/null; do
        seconds=$(($(date +%s) - began))
        last=$(tail -n 1 "$said" | sed 's/\o33\[[0-9;?]*[A-Za-z]//g' | tr '\t' ' ' | tr -d '\000-\037')
        if [ -t 2 ]; then
            columns=$(stty size <&2 2>/dev/null | cut -d' ' -f2)
            line="$title, $seconds s${last:+: $last}"
            printf '\r\033[K%.*s' "$((${columns:-80} - 1))" "$line" >&2
        elif [ "$minutes" -ne $((seconds / 60)) ]; then
            minutes=$((seconds / 60))
            printf '%s: %s s so far%s\n' "$title" "$seconds" "${last:+: $last}" >&2
        fi
        sleep 0.5
    done
    code=0
    wait "$working" || code=$?
    working=
    seconds=$(($(date +%s) - began))
    [ ! -t 2 ] || printf '\r\033[K' >&2
    if [ "$code" -ne 0 ]; then
        printf '%s: failed after %s s. It said (all of it is in %s):\n' "$title" "$seconds" "$said" >&2
        tail -n 30 "$said" >&2
        return "$code"
    fi
    printf '%s: done in %s s\n' "$title" "$seconds" >&2
    rm -f "$said"
}
