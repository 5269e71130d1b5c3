#!/bin/sh
# Writes constraints.txt: the versions that pip chooses today for everything the images install, and the hashes of their
# files. constraints-cloud.txt, those of the image cloud: boto3 wants an older python-dateutil than the Kubernetes client, all
# else is the same. And constraints-tools.txt, those of what builds a release and writes bills of materials.
# fetch.sh downloads what is in such a list. constraints.sh [hashes]: `hashes` leaves the versions as they are.
set -eu
cd "$(dirname "$0")/../.."

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"${PYTHON:-python3}" -m venv "$scratch/pip"
pip() { "$scratch/pip/bin/python" -m pip --quiet --disable-pip-version-check "$@"; }

# pins FILE TITLE ARGUMENT...: what pip installs for these arguments. hatchling, setuptools and wheel build distributions,
# ours, python-iptables and some of Alibaba's.
pins() {
    file=$1
    title=$2
    shift 2
    environment="$scratch/$(basename "$file" .txt)"
    "${PYTHON:-python3}" -m venv --without-pip "$environment"
    pip --python "$environment/bin/python" install --use-pep517 "$@" hatchling setuptools wheel
    {
        echo "# $title Made by: make constraints"
        pip --python "$environment/bin/python" freeze --all --exclude flannelette
    } >"$file"
}

all=deploy/images/constraints.txt
cloud=deploy/images/constraints-cloud.txt
tools=deploy/images/constraints-tools.txt
if [ "${1:-}" != hashes ]; then
    pins "$all" "Every version in the images but cloud." '.[all]'
    grep -v '^python-dateutil==' "$all" >"$scratch/same"
    pins "$cloud" "Every version in the image cloud." --constraint "$scratch/same" '.[aws,gce,ali,tencent]' click PyYAML rich
    pins "$tools" "What builds a release and writes bills of materials." build cyclonedx-bom
fi
for list in "$all" "$cloud" "$tools"; do
    "$scratch/pip/bin/python" deploy/images/hashes.py "$list"
done
