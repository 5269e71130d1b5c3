#!/bin/sh
# Makes what a release consists of: dist.sh DIRECTORY. The source distribution, the wheel, for each service a bill of
# materials (CycloneDX, JSON) of exactly what its image installs, and SHA256SUMS of all.
set -eu

mkdir -p "${1:?dist.sh DIRECTORY}"
target=$(cd "$1" && pwd)
cd "$(dirname "$0")/../.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"${PYTHON:-python3}" -m venv "$scratch/tools"
for list in constraints constraints-cloud constraints-tools; do
    PYTHON="$scratch/tools/bin/python" sh deploy/images/fetch.sh "deploy/images/$list.txt" "$scratch/$list"
done
export PIP_NO_INDEX=1 PIP_FIND_LINKS="$scratch/constraints-tools" # from here on pip sees no index
"$scratch/tools/bin/python" -m pip install --quiet --disable-pip-version-check build cyclonedx-bom
# The time of the last change, not of the build: the same sources give the same bytes.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
"$scratch/tools/bin/python" -m build --outdir "$target" . >/dev/null

for service in lease dataplane masq cloud ctl all; do
    extras=$service
    list=constraints
    case $service in
    lease) extras=lease,kubernetes ;;
    cloud) extras=aws,gce,ali,tencent list=constraints-cloud ;;
    esac
    environment="$scratch/$service"
    "${PYTHON:-python3}" -m venv --without-pip "$environment"
    PIP_FIND_LINKS="$scratch/$list" "$scratch/tools/bin/python" -m pip --python "$environment/bin/python" install --quiet \
        --disable-pip-version-check "$(echo "$target"/*.whl)[$extras]"
    "$scratch/tools/bin/cyclonedx-py" environment --output-reproducible --output-format JSON \
        --pyproject pyproject.toml --output-file "$target/flannelette-$service.cdx.json" "$environment/bin/python"
done
cd "$target"
find . -maxdepth 1 -type f ! -name SHA256SUMS -printf '%f\n' | sort | xargs sha256sum -- >SHA256SUMS
