"""One look at the kernel and at CNI's files: what it is about, what is asked, and what is found in the answers.

Who has an address on the pods' bridge, and by which of its ports the answer comes, is asked by ARP: the kernel asks
for no neighbour that a program has set, and does not tell ports.
"""

import asyncio
import socket
import struct
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Final

from flannelette.services.core.conditions import Condition
from flannelette.services.core.family import FAMILIES, IPV4, family_of
from flannelette.services.core.leases.lease import Subnet
from flannelette.services.core.pod_addresses import CniPods
from flannelette.services.dataplane.backends.ipsec import Ipsec
from flannelette.services.dataplane.backends.vxlan import Vxlan
from flannelette.services.dataplane.backends.wireguard import Wireguard
from flannelette.services.dataplane.capture import attach
from flannelette.services.dataplane.diagnose.checks import CHECKS, blocks, forwarding_places
from flannelette.services.dataplane.diagnose.cni import cni_view
from flannelette.services.dataplane.diagnose.host_programs import HostFiles, managers_of, taken_port
from flannelette.services.dataplane.diagnose.inspector import Inspector
from flannelette.services.dataplane.diagnose.paths import (
    is_as_expected,
    merged,
    next_hops,
    path_findings,
    questions,
    returns,
    ways,
    ways_off,
)
from flannelette.services.dataplane.diagnose.pods import (
    bridge_index,
    bridges_of,
    check_pods,
    doubtful,
    pods_bridge,
    silent_places,
    unattached,
)
from flannelette.services.dataplane.diagnose.seen import (
    KernelSnapshot,
    PeerPath,
    Subject,
    family_of_af,
    is_down,
)
from flannelette.services.dataplane.kernel.programmer import PeerProgrammer, PeerState, state_of
from flannelette.services.dataplane.netlink.objects import Route
from flannelette.services.dataplane.peers import UNDERLAY, Peer, PeerContext
from flannelette.services.runtime.os.cni_state import cni_pods
from flannelette.services.runtime.os.processes import Process

_ALL_TYPES, _ARP = 0x0003, 0x0806  # ETH_P_
_HEADER: Final = struct.Struct(">6s6sH")
_PACKET: Final = struct.Struct(">HHBBH6s4s6s4s")
_EVERYBODY: Final = b"\xff" * 6
_REQUEST, _REPLY = 1, 2
_SECONDS: Final = 0.2
"""A pod of this host answers in a millisecond; one that is busy later."""
_ONLY_ARP: Final = ((0x28, 0, 0, 12), (0x15, 0, 1, _ARP), (0x06, 0, 0, 0x40), (0x06, 0, 0, 0))


async def locate(
    bridge: str, mac: bytes, source: bytes, addresses: Collection[bytes]
) -> dict[bytes, tuple[bytes, int]]:
    """The MAC of each address that answers, and the index of the interface by which the answer has come first."""
    found = dict[bytes, tuple[bytes, int]]()
    if not addresses:
        return found
    try:
        # Of all interfaces: a port has the frame before its bridge.
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_TYPES)) as asking:
            attach(asking, _ONLY_ARP)
            asking.setblocking(False)
            for each in addresses:
                packet = _PACKET.pack(1, 0x0800, 6, 4, _REQUEST, mac, source, bytes(6), each)
                asking.sendto(_HEADER.pack(_EVERYBODY, mac, _ARP) + packet, (bridge, _ARP))
            async with asyncio.timeout(_SECONDS):
                await _receive(asking, addresses, found)
    except (OSError, TimeoutError):
        pass  # what has not answered is not known
    return found


async def _receive(
    asking: socket.socket, addresses: Collection[bytes], found: dict[bytes, tuple[bytes, int]]
) -> None:
    loop = asyncio.get_running_loop()
    while len(found) < len(addresses):
        frame, (name, _, kind, *_) = await loop.sock_recvfrom(asking, 64)
        is_arp = len(frame) >= _HEADER.size + _PACKET.size and _HEADER.unpack_from(frame)[2] == _ARP
        if kind == socket.PACKET_OUTGOING or not is_arp:
            continue
        *_, operation, mac, address, _, _ = _PACKET.unpack_from(frame, _HEADER.size)
        if operation == _REPLY and address in addresses and address not in found:
            found[address] = mac, socket.if_nametoindex(name)


AT_ONCE = 250
"""Peers a look, each in its turn: their lookups take about 15 ms."""


def subject_of(programmer: PeerProgrammer, turn: int, again: Iterable[str] = ()) -> Subject | None:
    """What to look at, with the peers whose `turn` it is and some `again`; None: nothing is programmed yet."""
    context = programmer.context
    if context is None:
        return None
    links, port = context.links, carrier_port(context)
    count = len(programmer.peers)
    start = turn * AT_ONCE % count if count > AT_ONCE else 0
    some = islice(
        chain(islice(programmer.peers.values(), start, None), programmer.peers.values()), min(AT_ONCE, count)
    )
    more = islice((programmer.peers[lease] for lease in dict.fromkeys(again) if lease in programmer.peers), AT_ONCE)
    peers = {peer.lease.name: peer for peer in (*some, *more)}
    return Subject(
        {n.family: n.cidr for n in context.network.families},
        {family_of(subnet): subnet for subnet in context.own_subnets},
        links.underlay,
        links.devices,
        port,
        peers.keys(),
        tuple(path for peer in peers.values() for path in _paths(programmer, peer, links.underlay.index)),
        lambda: [
            (s.cidr, each.lease.name, each.lease.node) for each in programmer.peers.values() for s in _claimed(each)
        ],
        programmer.reconciler.foreign,
        _winning(programmer),
        programmer.reconciler.own_parts,
        lacks_tunnels=isinstance(context.backend, Ipsec) and bool(programmer.failed),
    )


def carrier_port(context: PeerContext) -> int:
    """The UDP port by which the kernel looks up the way of a tunnel's packets; 0: it looks at addresses alone."""
    return context.backend.port if isinstance(context.backend, Vxlan | Wireguard) else 0


async def look(
    inspector: Inspector, subject: Subject, files: HostFiles, flannelds: Sequence[Process]
) -> KernelSnapshot:
    """Asks the kernel, and looks at CNI's files, beside the flannelds that run. Raises Unavailable."""
    addresses, links = await inspector.addresses(), await inspector.links()
    seen = KernelSnapshot(
        names={index: each.name for index, each in links.items()},
        addresses=addresses,
        bridges=bridges_of(subject, addresses),
        links=links,
        on_record=cni_pods(files.cni_state) if files.cni_state else CniPods(obstacle="--cni-state-dir is empty"),
        vlans=await inspector.vlans() if any(each.filters_vlans for each in links.values()) else {},
        policies=await inspector.policies(),
        rules={family: await inspector.rules(family) for family in FAMILIES},
        flannelds=flannelds,
        cni=cni_view(files),
    )
    seen = replace(seen, ways=ways(subject, seen))
    indexes = {index for family in subject.own if (index := bridge_index(subject, seen, family)) is not None}
    places = forwarding_places(subject, {family: index for family in subject.own for index in indexes})
    devices = {device.index for device in subject.devices.values()}
    answers, narrow = await inspector.routes_of(questions(subject, seen))
    seen = replace(
        seen,
        forwarding=await inspector.forwarding(list(dict.fromkeys(places))),
        answers=answers,
        narrow=narrow,
    )
    if subject.lacks_tunnels or (subject.port and any(is_down(seen, index) for index in devices)):
        seen = replace(seen, taken=await asyncio.to_thread(taken_port, subject.port))
    back = await inspector.lookups(returns(subject, seen))
    seen = replace(seen, answers={**answers, **back}, neighbours=await inspector.neighbours(next_hops(seen)))
    seen = await _with_entries(inspector, subject, seen)
    if blocks(seen) or ways_off(subject, seen) or any(way.pods for way in seen.ways):
        near = {family: await inspector.all_neighbours(family) for family in subject.own}
        seen = replace(seen, pods={family: [each for each, _ in found] for family, found in near.items()})
    seen = replace(seen, pod_neighbours=await inspector.neighbours(silent_places(subject, seen)))
    if not is_as_expected(subject, seen) or unattached(subject, seen):
        seen = replace(seen, routes={family: await inspector.routes(family) for family in FAMILIES})
    if any(check_pods(subject, seen)):
        seen = replace(seen, managers=managers_of(files, seen.links.values()))
    return seen


async def _with_entries(inspector: Inspector, subject: Subject, seen: KernelSnapshot) -> KernelSnapshot:
    """Asks what is known of the pods at their bridge, and the pods themselves where there is a doubt."""
    bridge = pods_bridge(subject, seen)
    if bridge is None or bridge.kind != "bridge":
        return seen
    near = [await inspector.neighbours_at(family, bridge.index) for family in subject.own]
    at_bridge = {address: state for some in near for address, state in some.items()}
    seen = replace(seen, at_bridge=at_bridge, entries=await inspector.bridge_entries(bridge.index))
    own = next((a.address for a in seen.addresses if a.ifindex == bridge.index and a.family is IPV4), None)
    if own is None or not bridge.is_up:
        return seen
    return replace(seen, located=await locate(bridge.name, bridge.mac, own, doubtful(subject, seen)))


def findings(subject: Subject, seen: KernelSnapshot) -> tuple[Condition, ...]:
    """What is in the way, the gravest first. Pure."""
    host = (finding for check in CHECKS.values() for finding in check(subject, seen))
    return merged([*path_findings(subject, seen), *host])


def _claimed(peer: Peer) -> Sequence[Subnet]:
    """The subnets that are the peer's, also where an address of this host's underlay makes the lease refused."""
    return peer.lease.subnets if any(each.rule == UNDERLAY for each in peer.refusals) else peer.candidates


def _winning(programmer: PeerProgrammer) -> frozenset[Route]:
    """The foreign routes that the kernel takes rather than ours, or where a refused peer has none."""
    reconciler = programmer.reconciler
    if not reconciler.foreign:
        return frozenset()
    peers = programmer.peers.values()
    shadows = (reconciler.shadow(item) for peer in peers for item in peer.objects if isinstance(item, Route))
    refused = {
        (family_of(s.cidr).af, s.cidr.network_address.packed, s.cidr.prefixlen)
        for peer in peers
        if peer.refusals
        for s in _claimed(peer)
        if not peer.objects
    }
    alone = (each for each in reconciler.foreign if (each.family, each.dst, each.length) in refused)
    return frozenset((*filter(None, shadows), *alone))


def _paths(programmer: PeerProgrammer, peer: Peer, underlay: int) -> Iterator[PeerPath]:
    if state_of(programmer.reconciler, peer, {})[0] is not PeerState.PROGRAMMED:
        return
    for item in peer.objects:
        if isinstance(item, Route):
            subnet = peer.lease.subnet(family_of_af(item.family))
            if subnet is not None and subnet.cidr.num_addresses >= 4:
                public = subnet.public_address if item.ifindex != underlay else None
                yield PeerPath(peer.lease.name, peer.lease.node, subnet.cidr, item, public)
