"""What unanswered probes say about the network, as findings. Pure.

If a peer answers in the underlay and not through the overlay, the tunnel between the two nodes is broken. If
it answers neither, the peer or the network to it is down. A probe cannot tell which node drops the packets.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import replace
from typing import Final, TypeAlias

from flannelette.services.core.conditions import Condition, PeerName, found
from flannelette.services.core.cure import Command, Cure
from flannelette.services.core.family import Family
from flannelette.services.dataplane.probes.record import MISSES, PROOFS, Answering, Layer, ProbedPath, Record
from flannelette.services.dataplane.probes.sockets import PORT

Paths: TypeAlias = Mapping[ProbedPath, Record]

_MOST_COMMANDS: Final = 5
"""Largest number of commands in one cure, one for each peer; of more peers the cause is in the network."""
_MANY: Final = 2
"""Least number of peers of which it says something about this node that none answers."""


def probe_findings(
    peers: Mapping[PeerName, Paths],
    carrier: str,
    narrowed: Callable[[str, Family, int], str],
    detours: Mapping[str, Condition],
    *,
    some_answer: bool,
) -> Iterator[Condition]:
    """The findings about peers that do not answer as they should, `some_answer`: others do.

    `carrier` is what a firewall between the nodes has to let through; `narrowed` returns the command that gives the
    route to a lease, in a family, an MTU. `detours`, by lease, is what is told of a peer that is silent and to which
    packets leave by another interface than the underlay's.
    """
    tunnels, nodes, leaking = list[PeerName](), list[PeerName](), dict[PeerName, str]()
    diverted = defaultdict[tuple[str, str], list[PeerName]](list)
    narrow = defaultdict[tuple[Family, int, int], list[PeerName]](list)
    for name, paths in peers.items():
        overlay = [(path, record) for path, record in paths.items() if path.layer is Layer.OVERLAY]
        underlay = [record.state for path, record in paths.items() if path.layer is Layer.UNDERLAY]
        is_silent, detour = any(record.state is Answering.SILENT for _, record in overlay), detours.get(name[0])
        if is_silent and detour is not None:
            diverted[detour.cause, detour.cure].append(name)
        elif is_silent:
            (tunnels if Answering.ANSWERS in underlay else nodes).append(name)
        elif leak := _leak(paths):
            leaking[name] = leak
        for path, record in overlay:
            if record.is_narrow:
                narrow[path.family, path.mtu, 0 if record.is_searching else record.sizes.largest].append(name)
    for names in diverted.values():
        yield replace(detours[names[0][0]], peers=tuple(names))
    is_general = not some_answer and len(tunnels) >= _MANY
    if tunnels:
        yield _tunnel(tuple(tunnels), carrier, is_general=is_general)
    if leaking:
        evidence = "; ".join(list(leaking.values())[:_MOST_COMMANDS])
        yield found("peer.loss", carrier=_carried(carrier), evidence=evidence, peers=tuple(leaking))
    for (family, mtu, largest), names in narrow.items():
        is_told = largest and len(names) <= _MOST_COMMANDS
        cures = [narrowed(lease, family, largest) for lease, _ in names] if is_told else []
        yield _narrow(tuple(names), mtu, largest, " && ".join(filter(None, cures)))
    if nodes:
        yield _node(tuple(nodes))


def checksum_finding(names: tuple[PeerName, ...], devices: Set[str], underlay: str, *, is_kept_on: bool) -> Condition:
    """Makes the finding about peers to which packets leave by these devices, and do not pass with a checksum that is
    left to them.

    `is_kept_on`: this service turns the offload of overlay devices on.
    """
    left_by = sorted(devices)
    is_ours = is_kept_on and underlay not in devices
    remark = " This dataplane keeps it on: start it without `--checksum-offload=on`." if is_ours else ""
    offloads = ((name, "tx" if name == underlay else "tx-checksum-ip-generic") for name in left_by)
    return found(
        "peer.checksum",
        devices=" and ".join(left_by),
        remark=remark,
        cure="" if is_ours else Cure(*(Command("offload-off", *each) for each in offloads)),
        evidence=f"UDP to port {PORT}: answered with a checksum that the kernel has computed, and not with one that "
        f"it leaves to the device, {PROOFS} times in a row",
        peers=names,
    )


def mute_finding(names: tuple[PeerName, ...]) -> Condition:
    """Makes the finding about peers to which packets pass, and that do not answer pings."""
    evidence = f"UDP to port {PORT} through the overlay: answered that it is closed; ICMP echo: no answer"
    return found("peer.echo", evidence=evidence, peers=names, is_remote=True)


def _leak(paths: Paths) -> str:
    """What probes say of a peer that loses more in the overlay than in the underlay; empty: it does not."""
    leaking = [record for path, record in paths.items() if path.layer is Layer.OVERLAY and record.is_leaking]
    below = [each.lost for path, each in paths.items() if path.layer is Layer.UNDERLAY and each.answered]
    most, least = max((each.lost for each in leaking), default=0), max(below, default=0)
    if most < least + MISSES:
        return ""
    return f"ICMP echo of late: {most} without an answer through the overlay, {least} in the underlay"


def _carried(carrier: str) -> str:
    return carrier or "packets of the network"


def _tunnel(names: tuple[PeerName, ...], carrier: str, *, is_general: bool) -> Condition:
    where = "on this node (no peer answers)" if is_general else "on either node or between them"
    return found(
        "peer.tunnel",
        where=where,
        carrier=_carried(carrier),
        evidence="ICMP echo: three in a row without an answer through the overlay, answers in the underlay",
        peers=names,
        is_general=is_general,
    )


def _narrow(names: tuple[PeerName, ...], mtu: int, largest: int, cure: str) -> Condition:
    """`largest` 0: it is not known."""
    if not largest:
        said = f"ICMP echo with DF: three of {mtu} bytes in a row without an answer, small ones are answered"
        return found("peer.mtu-unknown", mtu=mtu, evidence=said, peers=names)
    return found(
        "peer.mtu",
        mtu=mtu,
        largest=largest,
        less=mtu - largest,
        until_then="; until then, limit the routes" if cure else "",
        cure=cure,
        evidence=f"ICMP echo with DF: {largest} bytes are answered, {largest + 1} are not",
        peers=names,
    )


def _node(names: tuple[PeerName, ...]) -> Condition:
    evidence = "ICMP echo: three in a row without an answer"
    return found("peer.down", evidence=evidence, peers=names, is_remote=True)
