"""The addresses that rules of other programs give packets, and whether anybody answers there.

Where this host, the neighbours and the routes do not decide, connections do that the kernel has seen: with an answer,
or without one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Network, IPv6Network, collapse_addresses
from itertools import pairwise
from typing import Final

from flannelette.services.core.family import Network
from flannelette.services.core.network import contains
from flannelette.services.core.tunnel import UDP
from flannelette.services.masq.diagnose.cures import Host
from flannelette.services.masq.diagnose.verdict import TCP, Flow, Given
from flannelette.services.masq.kernel.connections import Connection, connections_to
from flannelette.services.masq.kernel.local_programs import is_listening, takes_loopback
from flannelette.services.masq.kernel.routing import answers_neighbours, parts_of, way_to

_MOST_SHOWN: Final = 4


@dataclass(frozen=True, slots=True)
class End:
    """The end of the way of a packet."""

    said: str = ""
    """The end in words; empty: unknown."""
    is_lost: bool = False
    """Packets get no answer there."""


def sent_to(given: Given, packet: Flow, flows: Sequence[Flow], host: Host) -> End | None:
    """Returns the end to which a rule sends a packet; None: the one that it has anyway. `flows`: all that packets of
    pods and tunnels are.
    """
    networks, port = given.of(packet.destination), given.port or packet.port
    if networks == (packet.destination,) and port == packet.port:
        return None
    if packet.name == "tunnel":
        return _of_tunnel(networks, port, packet, flows, host)
    if networks is None:
        return End()
    if not networks:
        return _here(None, given.port, packet)
    if packet.name == "host" and packet.is_answer:
        end = _here(None, port, packet)
        return replace(end, said=f"{end.said}, which has not asked", is_lost=True) if not end.is_lost else end
    like = [flow for flow in flows if (flow.name, flow.is_from_peers) == ("pods", packet.is_from_peers)]
    like = [flow for flow in like if packet.is_ours or contains(flow.source, packet.source)]
    foreign = [each for each in networks if not _is_own(each, host)]
    seen = [
        each
        for each in connections_to(foreign)
        if any(each.source in flow.source and each.destination in flow.destination for flow in like)
    ]
    ends = [_here(each, given.port, packet) for each in networks if each not in foreign]
    ends += [_there(each, given.port, packet, like, seen) for each in foreign]
    return next((each for each in ends if each.is_lost), ends[0])


def foreign_among(given: Sequence[Network], host: Host, subnets: Iterable[Network]) -> tuple[bool, bool]:
    """Returns whether some of these sources, and whether all, are no addresses of this host or of its pods."""
    if not host.own:
        return False, False
    mine = [*_collapsed(each for each in host.own if not _is_nowhere(each)), *subnets]
    is_some = any(not any(contains(own, each) for own in mine) for each in given)
    return is_some, not any(own.overlaps(each) for own in mine for each in given if own.version == each.version)


def is_unanswered(flow: Flow, given: Sequence[Network], host: Host, subnets: Sequence[Network]) -> bool:
    """Whether answers to some of these sources are lost. `subnets`: those of this node's pods.

    To this host, a pod of its own sends them by the host, and so to it, but for those of its own subnet, of which it
    asks its neighbours.
    """
    if flow.name != "host" or not any(contains(each, flow.destination) for each in subnets):
        return foreign_among(given, host, subnets)[0]
    own = [each for each in given if each.version == flow.destination.version and each.overlaps(flow.destination)]
    return foreign_among(own, host, ())[0]


def shown(networks: Sequence[Network]) -> str:
    """Writes addresses: one, a range, or several."""
    if all(one[-1] + 1 == other[0] for one, other in pairwise(networks)):
        first, last = networks[0][0], networks[-1][-1]
        return str(first) if first == last else f"{first}-{last}"
    words = [str(each[0] if each.num_addresses == 1 else each) for each in networks]
    return ", ".join([*words[:_MOST_SHOWN], *["..."] * (len(words) > _MOST_SHOWN)])


def _of_tunnel(networks: Sequence[Network] | None, port: int, packet: Flow, flows: Iterable[Flow], host: Host) -> End:
    """Returns the end of packets between the nodes.

    A node may have another address for its peers than it has for itself, so where it sends them is its own matter; it
    takes those that come at its own port.
    """
    if networks is not None and all(_is_own(each, host) for each in networks):
        end = _here(networks[0] if networks else None, port, packet)
        is_taken = not packet.is_ours and packet.protocol == UDP and port == packet.port
        return replace(end, is_lost=end.is_lost or not is_taken)
    peers = [flow.destination for flow in flows if flow.name == "tunnel" and flow.is_ours]
    said = f"{shown(networks)}{f' port {port}' * bool(port)}" if networks else ""
    return End(said, not packet.is_ours or any(each in peers for each in networks or ()))


def _here(network: Network | None, port: int, packet: Flow) -> End:
    """The end of packets to an address of this host; None: to that of the interface."""
    address = network.network_address if network is not None and network.num_addresses == 1 else None
    said = f"port {port} of this host" if port else "this host"
    said = said if network is None else f"{shown([network])}, {said}"
    is_taken = packet.is_ours or (packet.source.version == 4 and takes_loopback(packet.incoming))
    if address is not None and address.is_loopback and not is_taken:
        return End(f"{said}, which the kernel takes from no other interface", is_lost=True)
    is_asked = packet.protocol in (TCP, UDP)  # a ping this host answers
    is_unheard = is_asked and is_listening(packet.protocol, port or packet.port, address) is False
    return End(f"{said}, where no program listens" if is_unheard else said, is_unheard)


def _there(network: Network, port: int, packet: Flow, like: Sequence[Flow], seen: Iterable[Connection]) -> End:
    """The end of packets to an address of another host, of a pod, or of nobody."""
    said = f"{shown([network])}{f' port {port}' * bool(port)}"
    to = [each for each in seen if each.answering in network]
    of_kind = [each for each in to if each.protocol == packet.protocol and port in (0, each.port)]
    if any(each.is_answered for each in of_kind or to):
        return End(f"{said}, which answers")
    if of_kind:
        return End(f"{said}, where nobody answers", is_lost=True)
    address = network.network_address
    way = way_to(address)
    if way is None:
        return End(f"{said}, to which no route leads", is_lost=True)
    is_neighbour = answers_neighbours(address, way.device) if way.gateway is None else None
    own = [flow.destination if flow.is_from_peers else flow.source for flow in like]
    cidrs = [flow.source if flow.is_from_peers else flow.destination for flow in like]
    if any(contains(each, network) for each in own):
        return End(f"{said}, {'a pod of' if is_neighbour else 'which no pod has on'} this node", not is_neighbour)
    devices = {flow.incoming if flow.is_from_peers else flow.outgoing for flow in like}
    if way.device in devices or any(contains(part, network) for each in cidrs for part, _ in parts_of(each)):
        return End(f"{said}, in the subnet of another node")
    if any(contains(each, network) for each in cidrs):
        return End(f"{said}, in the subnet of no node", is_lost=True)
    if way.gateway is None:
        return End(f"{said}, where nobody answers" if is_neighbour is False else said, is_neighbour is False)
    return End(f"{said}, outside of the network, from where no answer was seen", is_lost=True)


def _is_own(network: Network, host: Host) -> bool:
    return any(contains(each, network) for each in _collapsed(host.own))


def _is_nowhere(network: Network) -> bool:
    """Whether no answer finds such an address in the network of another host."""
    return network.network_address.is_loopback or network.network_address.is_multicast


def _collapsed(networks: Iterable[Network]) -> list[Network]:
    """The same addresses in as few networks as there can be."""
    found = list(networks)
    return [
        *collapse_addresses([each for each in found if isinstance(each, IPv4Network)]),
        *collapse_addresses([each for each in found if isinstance(each, IPv6Network)]),
    ]
