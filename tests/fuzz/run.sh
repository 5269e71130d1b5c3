#!/bin/sh
# `make fuzz`, with atheris where it has wheels: run.sh OPTION...
set -eu

.venv/bin/python -c 'import atheris' 2>/dev/null || .venv/bin/python -m pip install --quiet --editable '.[fuzz]' || true
exec .venv/bin/python -m tests.fuzz "$@"
