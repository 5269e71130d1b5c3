#!/bin/sh
# Style, layers, docstrings and protocols of the tree: lint.sh CACHE, a directory for the tool that pip does not have.
set -eu

.venv/bin/ruff check
.venv/bin/ruff format --check
.venv/bin/lint-imports
.venv/bin/python -m tests.docstrings services lab bench
sh lab/tools.sh buf "$1"
command -v buf >/dev/null || exit 0 # its lack has been told
buf lint proto
for each in proto/released/*.binpb; do buf breaking proto --against "$each"; done
