"""The ways of a network's packets on this host, as the kernel says them."""

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_network
from pathlib import Path
from typing import Final

from flannelette.services.core.errors import InvalidInput
from flannelette.services.core.family import Address, Network, family_of
from flannelette.services.core.network import NetworkConfig
from flannelette.services.masq.diagnose.cures import PERSISTENT, Host
from flannelette.services.masq.diagnose.flows import OUTSIDE, Neighbour, Peer, Pod, Surroundings
from flannelette.services.masq.kernel.routing import (
    encapsulated,
    is_set,
    link_locals,
    mac_of,
    own_networks,
    parts_of,
    pods_of,
    ports_of,
    routers_of,
    tunnel_peers,
    way_to,
    with_arp,
)
from flannelette.services.masq.kernel.traffic import filters, queues

_MOST_PEERS: Final = 256
"""Peers of each IP version that are asked about."""
_MOST_PORTS: Final = 250
_CALLS: Final = {
    version: Path(f"/proc/sys/net/bridge/bridge-nf-call-{program}")
    for version, program in ((4, "iptables"), (6, "ip6tables"))
}


def surroundings(network: NetworkConfig | None, subnets: Iterable[Network], suffix: str) -> Surroundings:
    """Peers and interfaces, those of one look. What nobody can say is left out."""
    bridges, uplinks, devices = list[tuple[int, str]](), list[tuple[int, str]](), _devices(network, suffix)
    addresses, ways = list[tuple[int, Network]](), dict[tuple[int, str], Network]()
    gateways = list[tuple[int, Address]]()
    found = tunnel_peers(network.backend_type, devices) if network else ()
    ends = (sorted((each for each in found if each.version == version), key=int) for version in (4, 6))
    past_nat = encapsulated() if network and network.backend_type == "ipsec" else {}
    peers = [_peer(address, past_nat.get(address)) for some in ends for address in some[:_MOST_PEERS]]
    own = {family_of(subnet): subnet for subnet in subnets}
    for row in network.families if network else ():
        version = row.family.version
        subnet = own.get(row.family)
        way = way_to(subnet[min(2, subnet.num_addresses - 1)]) if subnet else None
        bridges += [(version, way.device)] if way and way.gateway is None else []
        gateways += [(version, way.source)] if way and way.source else []
        if network and network.backend_type != "ipsec":  # whose packets are as they are only before or after a card
            ways |= {(version, device): part for part, device in parts_of(row.cidr)}
        outside = way_to(OUTSIDE[version].network_address)
        uplinks += [(version, outside.device)] if outside else []
        addresses += [(version, ip_network(outside.source))] if outside and outside.source else []
    ports = [port for bridge in dict.fromkeys(name for _, name in bridges) for port in ports_of(bridge)][:_MOST_PORTS]
    senders = [*devices, *(peer.device for peer in peers), *(name for _, name in (*bridges, *uplinks)), *ports]
    macs = with_arp()
    pods = [Pod(*each) for version, bridge in bridges for each in pods_of(bridge, version)[:_MOST_PORTS]]
    control = queues(list(dict.fromkeys(filter(None, senders))))
    return Surroundings(
        tuple(peers),
        tuple(bridges),
        tuple(ports),
        tuple(uplinks),
        Host(
            frozenset(path for path in _files() if Path(path).exists()),
            own_networks(),
            tuple(ip_network(pod.address) for pod in pods),
        ),
        tuple(addresses),
        int(time.time()),
        tuple(control),
        tuple(filters(control)),
        frozenset(version for version, path in _CALLS.items() if _is_on(path)),
        tuple(_neighbours(network, [each.address for each in peers], macs.keys() - {*devices})),
        tuple(pods),
        tuple(gateways),
        macs,
        link_locals(),
        tuple(ways),
        dict(_own(ways)),
    )


def _own(ways: Mapping[tuple[int, str], Network]) -> Iterator[tuple[tuple[int, str], Address]]:
    """The addresses under which this host sends to pods of other nodes. `ways`: a subnet of one, by interface."""
    for of, part in ways.items():
        way = way_to(part[1])
        if way and way.source and way.device == of[1]:
            yield of, way.source


def _neighbours(
    network: NetworkConfig | None, peers: Iterable[Address], on_links: Collection[str]
) -> Iterator[Neighbour]:
    """The nodes and routers in the underlay whose MACs this host asks for."""
    hops, outside = dict[tuple[Address, str], bool](), list[Address]()
    for row in network.families if network else ():
        outside.append(OUTSIDE[row.family.version].network_address)
        hops |= dict.fromkeys(sorted(routers_of(row.cidr), key=str), True)
    for address in (*peers, *outside):
        way = way_to(address)
        if way and (way.gateway or address not in outside):
            hops.setdefault((way.gateway or address, way.device), way.gateway is not None)
    for (address, device), is_router in list(hops.items())[:_MOST_PEERS]:
        link = way_to(OUTSIDE[6].network_address if address.is_link_local else address)
        if device in on_links and link and link.source and not is_set(address, device):
            yield Neighbour(address, device, link.source, mac_of(address, device), is_router)


def _devices(network: NetworkConfig | None, suffix: str) -> Sequence[str]:
    """The devices that may carry the network."""
    try:
        tunnel = network.tunnel(suffix) if network else None
    except InvalidInput:
        return ()
    return tunnel.carriers if tunnel else ()


def _peer(address: Address, is_past_nat: bool | None) -> Peer:
    way = way_to(address)
    if way is None:
        return Peer(address, is_past_nat=is_past_nat)
    return Peer(address, way.device, way.source, mac_of(way.gateway or address, way.device), is_past_nat)


def _files() -> Iterator[str]:
    for form, _, _ in PERSISTENT:
        yield from dict.fromkeys(form.format(version=version, six=six) for version, six in ((4, ""), (6, "6")))


def _is_on(path: Path) -> bool:
    try:
        return path.read_text().strip() == "1"
    except OSError:
        return False
