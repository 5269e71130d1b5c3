#!/bin/sh
# The compose lab, until Ctrl-C: builds the images, starts it, says what to try, and shows the logs.
# NODES, BACKEND (a file in networks), STORE (etcd, embedded) and PROCESS (separate, one) make it another lab.
set -eu
cd "$(dirname "$0")/../.."

nodes=${NODES:-3}
backend=${BACKEND:-vxlan}
store=${STORE:-etcd}
settings=.env
[ "$store" = etcd ] || settings=$store.env
if [ ! -f "deploy/compose/$settings" ] || [ ! -f "deploy/compose/networks/$backend.json" ]; then
    backends=$(cd deploy/compose/networks && for each in *.json; do printf ' %s' "${each%.json}"; done)
    echo "compose-lab: STORE is etcd or embedded, BACKEND is one of$backends" >&2
    exit 2
fi
process=${PROCESS:-separate}
case $process-$store in
separate-* | one-etcd) ;;
*)
    echo "compose-lab: PROCESS is separate, or with STORE=etcd one" >&2
    exit 2
    ;;
esac
if [ "$backend" = ipsec ]; then # which needs a charon on each host
    export COMPOSE_PROFILES="$store,ipsec"
fi
compose() { sh deploy/compose/compose.sh --env-file "$settings" "$@"; }

# What is wrong is said before the images are built, which takes minutes on a new machine: the base and seven images, then
# three steps of our own.
images=8
of_host="lease dataplane masq"
[ "$process" = separate ] || of_host=all images=6
export PROGRESS_TOTAL=$((images + 3))
if [ "${1:-}" != inside ]; then
    sh deploy/compose/generate.sh "$nodes" >/dev/null
    sh deploy/check.sh lab
    trap 'exit 0' INT TERM
    # shellcheck disable=SC2086  # several images
    sh deploy/engine.sh build sh deploy/images/build.sh $of_host ctl lab etcd charon
    PROGRESS_DONE=$images exec sh deploy/engine.sh lab sh deploy/compose/lab.sh inside
fi
. deploy/progress.sh
progress_of "$PROGRESS_TOTAL"

down() {
    trap - INT TERM EXIT
    progress_stop
    echo "stopping"
    said=$(compose down --volumes --timeout 2 2>&1) || printf '%s\n' "$said" >&2
}
trap down EXIT
trap 'exit 0' INT TERM

until_healthy() {
    host=1
    attempt=0
    while [ "$host" -le "$nodes" ]; do
        if said=$(compose exec -T "h$host" flannelette status 2>&1); then
            echo "h$host is healthy"
            host=$((host + 1))
            continue
        fi
        attempt=$((attempt + 1))
        case $attempt-$said in
        *"the kernel has no "* | 121-*) # no module: waiting does not help
            printf '%s\n' "$said"
            return 1
            ;;
        esac
        printf '%s\n' "$said" | head -n 1
        sleep 0.5
    done
}

start="sh deploy/compose/compose.sh --env-file $settings"
# shellcheck disable=SC2086  # a command of several words
step "clearing up what an earlier lab has left" $start down --volumes --timeout 2
# shellcheck disable=SC2086  # as above
step "starting: $nodes hosts, $backend, $store store" $start up --detach
step "every host is healthy" until_healthy
compose exec -T h1 flannelette leases

command="docker compose"
docker compose version >/dev/null 2>&1 || command=docker-compose
[ "$settings" = .env ] || command="$command --env-file $settings"
leases=h1-lease
[ "$store" = etcd ] || leases=lease
address=$(compose exec -T "pod$nodes" ip -4 -o address show eth0 | sed 's/.*inet \([0-9.]*\).*/\1/')
printf '\nThe lab is up. In a second terminal:\n\n    cd %s\n' "$PWD/deploy/compose"
[ -z "${DOCKER_HOST:-}" ] || printf '    export DOCKER_HOST=%s\n' "$DOCKER_HOST"
[ "$nodes" -eq 3 ] && [ "$backend" != udp ] && [ "$process" = separate ] || printf '    export COMPOSE_FILE=generated.yml\n'
try() { printf '\n  %s:\n    %s %s\n' "$1" "$command" "$2"; }
try "Is a host healthy, and why not" "exec h1 flannelette status"
try "What the kernel has for each peer" "exec h1 flannelette peers"
try "Leases, live" "exec h1 flannelette watch"
try "From a pod to the pod of h$nodes" "exec pod1 ping $address"
try "Any command of a host" "exec h1 ip route"
services="$leases h1-dataplane h1-masq"
[ "$process" = separate ] || services=h1-flanneld
try "The logs of a host, side by side" "logs --follow $services"
try "A host that goes and comes back with everything on it" "restart h2"
try "grpcurl, if there is one in deploy/compose/tools" \
    "exec h1 grpcurl -plaintext -unix /run/flannelette/dataplane.sock list"
printf '\nCtrl-C ends the lab. What is said from now on:\n\n'
compose logs --follow --tail=0 || true
