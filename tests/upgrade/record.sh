#!/bin/sh
# Records what the version of pyproject.toml leaves on three hosts, with each store, in tests/golden/releases.
set -eu

version=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
for store in etcd embedded; do
    .venv/bin/python -m tests.upgrade record "$store" "tests/golden/releases/$version/$store"
done
