#!/bin/sh
# Runs the tests while their tools are built: test.sh DIRECTORY PYTEST... A test that needs a tool waits for it.
set -u

directory=$1
shift
mkdir -p "$directory"
: >>"$directory/tools.lock"
sh lab/tools.sh tests "$directory" &
tools=$!
trap 'kill $tools 2>/dev/null' EXIT
# The tools are pending before a test asks for one.
until [ -e "$directory/tools.pending" ] || ! kill -0 $tools 2>/dev/null; do sleep 0.1; done
"$@"
