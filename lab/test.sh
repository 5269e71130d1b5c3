#!/bin/sh
# Runs the tests while their tools are built: test.sh DIRECTORY all|wanted PYTEST... A test that needs a tool waits for it;
# `wanted` builds those alone that a test waits for.
set -u

directory=$1
which=$2
shift 2
mkdir -p "$directory"
: >>"$directory/tools.lock"
sh lab/tools.sh tests "$directory" "$which" &
tools=$!
trap 'kill $tools 2>/dev/null' EXIT
# The tools are pending before a test asks for one.
until ! flock --nonblock "$directory/tools.lock" true || ! kill -0 $tools 2>/dev/null; do sleep 0.1; done
"$@"
