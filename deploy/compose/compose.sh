#!/bin/sh
# Whichever docker compose there is, in this directory: compose.sh ARGUMENT... Exit code 77: there is none.
# NODES=5 makes it a lab of five hosts; BACKEND=udp lets a device in; PROCESS=one has one container of services on a host.
set -eu

cd "$(dirname "$0")"
if [ "${NODES:-3}" -ne 3 ] || [ "${BACKEND:-}" = udp ] || [ "${PROCESS:-separate}" = one ]; then
    generated=$(sh generate.sh "${NODES:-3}") || exit 2
    printf '%s\n' "$generated" >generated.yml
    export COMPOSE_FILE=generated.yml
fi
if docker compose version >/dev/null 2>&1; then
    exec docker compose "$@"
elif command -v docker-compose >/dev/null; then
    exec docker-compose "$@"
fi
echo "no docker compose: apt-get install docker-compose" >&2
exit 77
