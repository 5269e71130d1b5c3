#!/bin/sh
# Fetches grpcurl into a directory's bin, and prints its path: grpcurl.sh DIRECTORY
set -eu

sh "$(dirname "$0")/tools.sh" grpcurl "$1"
[ -x "$1/bin/grpcurl" ] # else its lack has been told
echo "$1/bin/grpcurl"
