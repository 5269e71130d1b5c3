#!/bin/sh
# Prints docker-compose.yml for so many hosts (3): generate.sh [HOSTS]
# BACKEND=udp lets /dev/net/tun into the dataplanes' containers, for a kernel without FOU. PROCESS=one makes one container of
# a host's three services.
# Only what docker-compose 1.29 and docker compose v2 both understand.
set -eu

hosts=${1:-3}
most=244 # their addresses are .11 to .254 of a /24
case $hosts in
*[!0-9]* | 0* | ????*) hosts_are_wrong=yes ;;
esac
if [ -n "${hosts_are_wrong:-}" ] || [ "$hosts" -gt "$most" ]; then
    echo "$hosts is not a number of hosts: use 1 to $most, which have the addresses .11 to .$((10 + most)) of the lab's /24" >&2
    exit 2
fi
cat <<'END'
# A lab of hosts, each with its services and a pod, joined by one network. Made by deploy/compose/generate.sh; see
# docs/compose.md, which also says why each container has the rights it has.
#
#   docker compose up --detach
#   docker compose exec h1 flannelette status
#
# BACKEND=host-gw is another network (a file in networks); ipsec needs COMPOSE_PROFILES=etcd,ipsec too, for charons.
# --env-file embedded.env is another store: one lease service, and no etcd.

x-service: &service
  restart: unless-stopped
  read_only: true
  cap_drop: [ALL]
  security_opt: ["no-new-privileges:true"]

x-lease: &lease
  <<: *service
  image: ${FLANNELETTE_IMAGE:-flannelette}-lease:${FLANNELETTE_TAG:-latest}
  build: &build
    context: ../..
    dockerfile: deploy/images/Dockerfile
    target: lease
    network: host
    args: {BASE_IMAGE: "${BASE_IMAGE:-debian:bookworm-slim}"}

x-dataplane: &dataplane
  <<: *service
  image: ${FLANNELETTE_IMAGE:-flannelette}-dataplane:${FLANNELETTE_TAG:-latest}
  build: {<<: *build, target: dataplane}
  cap_add: [NET_ADMIN, NET_RAW]
END
[ "${BACKEND:-}" != udp ] || echo "  devices: [/dev/net/tun]"
cat <<'END'

x-charon: &charon
  <<: *service
  image: ${FLANNELETTE_IMAGE:-flannelette}-charon:${FLANNELETTE_TAG:-latest}
  build: {<<: *build, target: charon}
  profiles: [ipsec]
  cap_add: [NET_ADMIN, NET_BIND_SERVICE]
  stop_signal: SIGKILL
  tmpfs: [/run]

x-masq: &masq
  <<: *service
  image: ${FLANNELETTE_IMAGE:-flannelette}-masq:${FLANNELETTE_TAG:-latest}
  build: {<<: *build, target: masq}
  cap_add: [NET_ADMIN, NET_RAW]

END
[ "${PROCESS:-separate}" != one ] || cat <<'END'
x-flanneld: &flanneld
  <<: *service
  image: ${FLANNELETTE_IMAGE:-flannelette}-all:${FLANNELETTE_TAG:-latest}
  build: {<<: *build, target: all}
  user: "0:10001"
  command: [flanneld]
  cap_add: [NET_ADMIN, NET_RAW]
END
[ "${PROCESS:-separate}" != one ] || [ "${BACKEND:-}" != udp ] || echo "  devices: [/dev/net/tun]"
[ "${PROCESS:-separate}" != one ] || cat <<'END'
  healthcheck: {test: [CMD-SHELL, "flannelette-probe lease && flannelette-probe dataplane && flannelette-probe masq"], interval: 30s, timeout: 5s, start_period: 30s}

END
cat <<'END'
x-lab: &lab
  <<: *service
  image: ${FLANNELETTE_IMAGE:-flannelette}-lab:${FLANNELETTE_TAG:-latest}
  build: {<<: *build, target: lab}

x-host: &host
  <<: *lab
  user: "0:10001"
  cap_add: [NET_ADMIN]
  sysctls: {net.ipv4.ip_forward: 1}
  command: [python3, -m, wiring.host]

x-pod: &pod
  <<: *lab
  user: "0:10001"
  cap_add: [NET_ADMIN]
  network_mode: none
  command: [python3, -m, wiring.pod]

x-settings: &settings
  FLANNELD_LEASE_ADDRESS: ${LEASE_ADDRESS:-unix:/run/flannelette-lease/lease.sock}
  FLANNELD_NETWORK_NAMESPACE_FILE: /run/flannelette/namespace
  FLANNELD_SUBNET_FILE: /run/flannelette/subnet.env
  FLANNELD_CHARON_SOCKET: /run/flannelette/charon.vici
  FLANNELD_STORE: etcd
  FLANNELD_ETCD_ENDPOINTS: http://${UNDERLAY:-10.99.0}.2:2379
  FLANNELD_IP_MASQ: "true"
  XTABLES_LOCKFILE: /run/flannelette/xtables.lock
  WIREGUARD_KEY_FILE: /var/lib/flannelette/wgkey

x-volume: &volume
  driver_opts: {type: tmpfs, device: tmpfs, o: "uid=0,gid=10001,mode=0770"}

services:
  etcd:
    <<: *service
    image: ${FLANNELETTE_IMAGE:-flannelette}-etcd:${FLANNELETTE_TAG:-latest}
    build: {<<: *build, target: etcd}
    profiles: [etcd]
    command: ["--listen-client-urls=http://0.0.0.0:2379", "--advertise-client-urls=http://${UNDERLAY:-10.99.0}.2:2379"]
    networks: {underlay: {ipv4_address: "${UNDERLAY:-10.99.0}.2"}}
    volumes: [etcd:/var/lib/etcd]

  network:
    <<: *service
    image: ${FLANNELETTE_IMAGE:-flannelette}-etcd:${FLANNELETTE_TAG:-latest}
    profiles: [etcd]
    restart: on-failure
    entrypoint: [sh, -c, "etcdctl --endpoints=http://${UNDERLAY:-10.99.0}.2:2379 put /coreos.com/network/config </network.json"]
    healthcheck: {disable: true}
    networks: {underlay: {ipv4_address: "${UNDERLAY:-10.99.0}.4"}}
    volumes: ["./networks/${BACKEND:-vxlan}.json:/network.json:ro"]

  lease:
    <<: *lease
    profiles: [embedded]
    network_mode: none
    environment: {FLANNELD_STORE: embedded}
    volumes:
      - lease-run:/run/flannelette-lease
      - lease:/var/lib/flannelette
      - ./networks/${BACKEND:-vxlan}.json:/etc/kube-flannel/net-conf.json:ro

  outside:
    <<: *lab
    command: [sleep, infinity]
    stop_signal: SIGKILL
    networks: {underlay: {ipv4_address: "${UNDERLAY:-10.99.0}.3"}}
END
n=1
while [ "$n" -le "$hosts" ]; do
    cat <<END

  h$n:
    <<: *host
    hostname: h$n
    environment: {FLANNELETTE_LEASE: "\${LEASE_ADDRESS:-unix:/run/flannelette-lease/lease.sock}"}
    networks: {underlay: {ipv4_address: "\${UNDERLAY:-10.99.0}.$((10 + n))"}}
    volumes:
      - h$n-run:/run/flannelette
      - h$n-lease-run:/run/flannelette-lease
      - h$n-pods:/run/pods
      - lease-run:/run/lease
      - \${TOOLS:-./tools}:/opt/tools:ro
END
    if [ "${PROCESS:-separate}" = one ]; then
        cat <<END
  h$n-flanneld:
    <<: *flanneld
    profiles: [etcd]
    network_mode: service:h$n
    environment: {<<: *settings, NODE_NAME: h$n}
    volumes:
      - h$n-run:/run/flannelette
      - h$n-lease-run:/run/flannelette-lease
      - h$n-state:/var/lib/flannelette
END
    else
        cat <<END
  h$n-lease:
    <<: *lease
    profiles: [etcd]
    network_mode: service:h$n
    environment: {<<: *settings, NODE_NAME: h$n, FLANNELD_NETWORK_NAMESPACE_FILE: /run/flannelette-lease/namespace}
    volumes: ["h$n-lease-run:/run/flannelette-lease"]
  h$n-dataplane:
    <<: *dataplane
    network_mode: service:h$n
    environment: {<<: *settings, NODE_NAME: h$n}
    volumes: &h$n-volumes
      - h$n-run:/run/flannelette
      - h$n-lease-run:/run/flannelette-lease
      - h$n-state:/var/lib/flannelette
      - lease-run:/run/lease
  h$n-masq:
    <<: *masq
    network_mode: service:h$n
    environment: {<<: *settings, NODE_NAME: h$n}
    volumes: *h$n-volumes
END
    fi
    cat <<END
  h$n-charon:
    <<: *charon
    network_mode: service:h$n
    volumes: ["h$n-run:/run/flannelette"]
  pod$n:
    <<: *pod
    hostname: pod$n
    volumes: ["h$n-pods:/run/pods"]
END
    n=$((n + 1))
done
cat <<'END'

networks:
  underlay:
    ipam:
      config: [{subnet: "${UNDERLAY:-10.99.0}.0/24"}]

volumes:
  etcd:
  lease:
  lease-run: *volume
END
n=1
while [ "$n" -le "$hosts" ]; do
    printf '  h%d-run: *volume\n  h%d-lease-run: *volume\n  h%d-pods: *volume\n  h%d-state:\n' "$n" "$n" "$n" "$n"
    n=$((n + 1))
done
