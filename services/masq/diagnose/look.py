"""The ways of a network's packets on this host, as the kernel says them."""

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from flannelette.services.core.errors import InvalidInput
from flannelette.services.core.family import Address, Network, family_of
from flannelette.services.core.network import NetworkConfig
from flannelette.services.core.tunnel import IPIP_DEVICE
from flannelette.services.masq.diagnose.cures import PERSISTENT
from flannelette.services.masq.diagnose.flows import OUTSIDE, Peer, Surroundings
from flannelette.services.masq.kernel.routing import mac_of, ports_of, tunnel_ends, way_to
from flannelette.services.masq.kernel.traffic import filters, queues

_MOST_PORTS: Final = 250
_CALLS: Final = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")


def surroundings(network: NetworkConfig | None, subnets: Iterable[Network], suffix: str) -> Surroundings:
    """Peers and interfaces, those of one look. What nobody can say is left out."""
    peers, bridges, uplinks = list[Peer](), list[tuple[int, str]](), list[tuple[int, str]]()
    own = {family_of(subnet): subnet for subnet in subnets}
    for row in network.families if network else ():
        version = row.family.version
        for device in _devices(network, version, suffix):
            peers += [_peer(address) for address in sorted(tunnel_ends(device, row.cidr), key=int)]
        subnet = own.get(row.family)
        way = way_to(subnet[min(2, subnet.num_addresses - 1)]) if subnet else None
        bridges += [(version, way.device)] if way and way.gateway is None else []
        outside = way_to(OUTSIDE[version].network_address)
        uplinks += [(version, outside.device)] if outside else []
    ports = [port for bridge in dict.fromkeys(name for _, name in bridges) for port in ports_of(bridge)][:_MOST_PORTS]
    control = queues([*_senders(network, peers, [*bridges, *uplinks], suffix), *ports])
    return Surroundings(
        tuple(peers),
        tuple(bridges),
        tuple(ports),
        tuple(uplinks),
        frozenset(path for path in _files() if Path(path).exists()),
        int(time.time()),
        tuple(control),
        tuple(filters(control)),
        _is_bridge_filtered(),
    )


def _devices(network: NetworkConfig | None, version: int, suffix: str) -> Iterator[str]:
    """The devices that carry the network."""
    try:
        tunnel = network.tunnel(suffix) if network else None
    except InvalidInput:
        return
    if tunnel is not None:
        yield tunnel.devices.get(version) or (IPIP_DEVICE if network and network.backend_type == "ipip" else "")


def _senders(
    network: NetworkConfig | None, peers: Iterable[Peer], others: Iterable[tuple[int, str]], suffix: str
) -> list[str]:
    """The interfaces that packets of the overlay come and leave by; `others` are those of pods and uplinks."""
    found = dict.fromkeys([*(peer.device for peer in peers), *(name for _, name in others)])
    found |= {device: None for version in (4, 6) for device in _devices(network, version, suffix)}
    return [*filter(None, found)]


def _peer(address: Address) -> Peer:
    way = way_to(address)
    if way is None:
        return Peer(address)
    return Peer(address, way.device, way.source, mac_of(way.gateway or address, way.device))


def _files() -> Iterator[str]:
    for form, _, _ in PERSISTENT:
        yield from dict.fromkeys(form.format(version=version, six=six) for version, six in ((4, ""), (6, "6")))


def _is_bridge_filtered() -> bool:
    try:
        return _CALLS.read_text().strip() == "1"
    except OSError:
        return False
