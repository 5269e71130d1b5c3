#!/bin/sh
# Runs a command that needs a docker engine: engine.sh build|lab COMMAND...
#
# An engine that answers is used as it is. Where none does, root gets one that lives as long as the command, in
# namespaces of its own: its containers and processes end with it, and Debian's docker.io is all it needs.
#
#   build  the engine is in the machine's network, so that apt and pip work, but makes no bridge and no firewall rule
#   lab    the engine is in a network namespace of its own, and nothing it does reaches the machine's network
#
# Both keep their images in the same place, one engine at a time. Exit code 77: something is missing, and check.sh has
# printed what; otherwise the command's own. FLANNELETTE_ENGINE=own never uses the machine's engine.
set -eu

say() { printf '%s\n' "$*" >&2; }
skip() {
    say "no docker engine: $*"
    exit 77
}
answers() { docker version >/dev/null 2>&1; }

state=${CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/flannelette}/engine
PATH="$PATH:/usr/sbin:/sbin"

start() {
    # Of an engine that was killed: this one would start its containers again, or take a process number that is
    # somebody else's by now for a containerd that runs.
    rm -rf "$state/data/containers" "$state/data/network" "$state/exec" "$state/pid" "$state/docker.sock"
    set -- --data-root "$state/data" --exec-root "$state/exec" --pidfile "$state/pid" --host "$DOCKER_HOST" --bridge none
    if [ "$mode" = build ]; then
        set -- "$@" --iptables=false --ip-masq=false --ip-forward=false
    else
        mount -t tmpfs tmpfs /run
        ip link set lo up
    fi
    setsid dockerd "$@" >"$state/dockerd.log" 2>&1 &
    engine=$!
    attempt=0
    until answers; do
        attempt=$((attempt + 1))
        if [ "$attempt" -gt 300 ] || ! kill -0 "$engine" 2>/dev/null; then
            tail -n 5 "$state/dockerd.log" >&2
            skip "dockerd does not start; all it said is in $state/dockerd.log"
        fi
        sleep 0.1
    done
}

mode=$1
shift
if [ "$mode" = inside ]; then
    mode=$1
    shift
    start
    unset FLANNELETTE_ENGINE # what the command starts uses this one
    code=0
    trap : INT # Ctrl-C is for the command, whose exit code counts; what it starts gets the signal as usual
    "$@" || code=$?
    kill "$engine"
    wait "$engine" || true
    exit "$code"
fi

sh "$(dirname "$0")/check.sh" "$mode"
if [ "${FLANNELETTE_ENGINE:-}" != own ] && answers; then
    exec "$@"
fi
mkdir -p "$state"
network=
[ "$mode" = build ] || network=--net
exec 9>"$state/lock"
flock -n 9 || { say "waiting for another engine that uses $state"; flock 9; }
export DOCKER_HOST="unix://$state/docker.sock"
# shellcheck disable=SC2086  # nothing or one word
exec unshare --mount --pid --fork --kill-child --mount-proc $network sh "$0" inside "$mode" "$@"
