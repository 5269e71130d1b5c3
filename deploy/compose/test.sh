#!/bin/sh
# The images, then the tests of the compose lab: test.sh PYTEST [ARGUMENT...]
# Without a docker engine there is nothing to test: it says why, and succeeds.
set -u
cd "$(dirname "$0")/../.."

sh deploy/engine.sh build sh deploy/images/build.sh && sh deploy/engine.sh lab "$@" -m compose tests/compose
code=$?
if [ "$code" -eq 77 ]; then
    echo "compose-test is skipped: the line above says what is missing"
    exit 0
fi
exit "$code"
