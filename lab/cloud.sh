#!/bin/sh
# Makes an environment with the SDKs of clouds and moto, an EC2 for tests: cloud.sh DIRECTORY. Done once for this file.
# In .venv they have no place: boto3 wants an older python-dateutil than the Kubernetes client.
set -eu

cloud=$1/cloud
wanted=$(sha256sum <"$0")
[ "$(cat "$cloud/made-for" 2>/dev/null)" != "$wanted" ] || exit 0
if ! [ -x .venv/bin/python ]; then
    echo "the environment for clouds is left out: make venv comes first" >&2
    exit 0
fi
echo "+ pip install moto boto3 ... into $cloud (once)" >&2
rm -rf "$cloud"
.venv/bin/python -m venv "$cloud"
# shellcheck disable=SC2046  # a list of words
if "$cloud/bin/python" -m pip install --quiet --disable-pip-version-check \
    moto[ec2]==5.2.5 flask flask-cors boto3==1.44.5 google-auth==2.62.2 requests \
    tencentcloud-sdk-python-common==3.1.195 alibabacloud-tea-openapi==0.4.6 \
    $(.venv/bin/python -m pip freeze | grep -E '^(grpcio|grpcio-health-checking|grpcio-reflection|protobuf|prometheus.client|structlog)=='); then
    echo "$wanted" >"$cloud/made-for"
else
    echo "the environment for clouds is left out: pip install failed, see above" >&2
fi
