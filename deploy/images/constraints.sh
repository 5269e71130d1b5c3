#!/bin/sh
# Writes constraints.txt: the versions that pip chooses today for everything the images install.
set -eu
cd "$(dirname "$0")/../.."

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"${PYTHON:-python3}" -m venv "$scratch"
# hatchling, setuptools and wheel build the distributions, ours and python-iptables.
"$scratch/bin/python" -m pip install --quiet --disable-pip-version-check --use-pep517 '.[all]' hatchling setuptools wheel
{
    echo "# Every version in the images. Made by: make constraints"
    "$scratch/bin/python" -m pip freeze --all --exclude pip --exclude flannelette
} >deploy/images/constraints.txt
