#!/bin/sh
# The images, then the tests of the compose lab: test.sh PYTEST [ARGUMENT...]
# Without a docker engine there is nothing to test: it says why, and succeeds.
set -u
cd "$(dirname "$0")/../.."

sh deploy/check.sh lab
if [ $? -eq 77 ]; then
    echo "compose-test is skipped: the lines above say what is missing"
    exit 0
fi
sh deploy/engine.sh build sh deploy/images/build.sh && exec sh deploy/engine.sh lab "$@" -m compose tests/compose
