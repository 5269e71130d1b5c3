#!/bin/sh
# Writes constraints.txt: the versions that pip chooses today for everything the images install. And constraints-cloud.txt,
# those of the image cloud: boto3 wants an older python-dateutil than the Kubernetes client, all else is the same.
set -eu
cd "$(dirname "$0")/../.."

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# pins FILE TITLE ARGUMENT...: what pip installs for these arguments. hatchling, setuptools and wheel build distributions,
# ours, python-iptables and some of Alibaba's.
pins() {
    file=$1
    title=$2
    shift 2
    environment="$scratch/$(basename "$file" .txt)"
    "${PYTHON:-python3}" -m venv "$environment"
    "$environment/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade --use-pep517 "$@" hatchling setuptools wheel
    {
        echo "# $title Made by: make constraints"
        "$environment/bin/python" -m pip freeze --all --exclude pip --exclude flannelette
    } >"$file"
}

all=deploy/images/constraints.txt
pins "$all" "Every version in the images but cloud." '.[all]'
grep -v '^python-dateutil==' "$all" >"$scratch/same"
pins deploy/images/constraints-cloud.txt "Every version in the image cloud." --constraint "$scratch/same" \
    '.[aws,gce,ali,tencent]' click PyYAML rich
