#!/bin/sh
# Removes from a virtual environment what nothing of ours loads: prune.sh DIRECTORY. For images and packages, whose
# environment is nobody else's. The Kubernetes client is 120 MB of generated calls and models, which it loads one by one when
# somebody asks for them; the store asks for its configuration and authentication only, and works on JSON. botocore describes
# each service of AWS: routes take EC2, and credentials STS and what `aws login` and `aws sso login` leave.
set -eu

packages=$(echo "$1"/lib/python3.*/site-packages)
for half in "$packages/kubernetes/client" "$packages/kubernetes/aio/client"; do
    [ ! -d "$half" ] || find "$half/api" "$half/models" -type f ! -name '__init__.*' -delete
done
services=$packages/botocore/data
[ ! -d "$services" ] || find "$services" -mindepth 1 -maxdepth 1 -type d \
    ! -name ec2 ! -name sts ! -name sso ! -name sso-oidc ! -name signin -exec rm -rf {} +
find "$packages" -type d -name tests -prune -exec rm -rf {} +
find "$packages" -type f \( -name '*.c' -o -name '*.h' -o -name '*.pyx' -o -name '*.pxd' \) -delete
