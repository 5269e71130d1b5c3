#!/bin/sh
# Runs the tests while their tools are built: test.sh DIRECTORY all|wanted PYTEST... A test that needs a tool waits for it;
# `wanted` builds those alone that a test waits for.
set -u

directory=$1
which=$2
shift 2
mkdir -p "$directory"
: >>"$directory/tools.lock"
setsid sh lab/tools.sh tests "$directory" "$which" & # a process group, which ends as a whole
tools=$!
trap 'kill -- -$tools 2>/dev/null' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM # a shell that a signal ends has no EXIT
trap 'exit 129' HUP
# The tools are pending before a test asks for one.
until ! flock --nonblock "$directory/tools.lock" true || ! kill -0 $tools 2>/dev/null; do sleep 0.1; done
# Hundreds of processes import the same modules; where PYTHONDONTWRITEBYTECODE is set, each would compile them.
[ ! -x "${1%/*}/python" ] || "${1%/*}/python" -m compileall -q services proto lab tests
"$@"
