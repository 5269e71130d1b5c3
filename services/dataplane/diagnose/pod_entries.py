"""Entries that programs have set for single pods: permanent neighbours, and MACs at a port of the bridge. Pure.

Whether one is wrong only the pod can tell: what is doubtful is asked for by ARP, see `locate`.
"""

from collections.abc import Iterator

from flannelette.services.core.conditions import BROKEN, WARNING, Condition, found
from flannelette.services.dataplane.diagnose.culprit import is_in_network
from flannelette.services.dataplane.diagnose.pods import pods_bridge
from flannelette.services.dataplane.diagnose.seen import BridgeEntry, HostLink, KernelSnapshot, Subject
from flannelette.services.dataplane.netlink.iproute2_text import address, mac


def doubtful(subject: Subject, seen: KernelSnapshot) -> list[bytes]:
    """The IPv4 addresses of pods for which a program has set a neighbour, or their MAC at a port of the bridge."""
    bridge = pods_bridge(subject, seen)
    if bridge is None:
        return []
    macs = {each.mac for each in _set_entries(seen, bridge)}
    return [
        packed
        for packed, state in seen.at_bridge.items()
        if len(packed) == 4 and (state.is_permanent or state.mac in macs) and _is_own(subject, packed)
    ]


def check_entries(subject: Subject, seen: KernelSnapshot) -> Iterator[Condition]:
    """A check: no program has set a wrong MAC for a pod's address, or a wrong port for its MAC."""
    bridge = pods_bridge(subject, seen)
    if bridge is None:
        return
    for packed, state in seen.at_bridge.items():
        mac_now, _ = seen.located.get(packed, (b"", 0))
        is_asked = len(packed) == 4  # by ARP
        if not state.is_permanent or not _is_own(subject, packed) or (is_asked and mac_now in (b"", state.mac)):
            continue
        if not is_asked and any(each.mac == state.mac and not each.is_local for each in seen.entries):
            continue
        yield found(
            "pod.neighbour",
            pod=address(packed),
            bridge=bridge.name,
            mac=mac(state.mac),
            right=f", and the pod answers with {mac(mac_now)}" if mac_now else ", which may be wrong",
            cure=f"ip neigh del {address(packed)} dev {bridge.name}",
            evidence=f"neigh {address(packed)} dev {bridge.name} lladdr {mac(state.mac)} PERMANENT",
            weight=BROKEN if mac_now else WARNING,
            is_part=True,
        )
    there = {where: packed for packed, where in seen.located.items()}
    for each in _set_entries(seen, bridge):
        for (of_pod, port), packed in there.items():
            if of_pod == each.mac and port != each.port:
                name, right = (seen.names.get(index, f"if{index}") for index in (each.port, port))
                vlan = f" vlan {each.vlan}" if each.vlan else ""
                yield found(
                    "pod.entry",
                    pod=address(packed),
                    mac=mac(each.mac),
                    port=name,
                    right=right,
                    cure=f"bridge fdb del {mac(each.mac)} dev {name} master{vlan}",
                    evidence=f"bridge fdb show: {mac(each.mac)} dev {name} master {bridge.name}",
                    is_part=True,
                )


def _set_entries(seen: KernelSnapshot, bridge: HostLink) -> list[BridgeEntry]:
    """What programs have set: the kernel has entries of its own for the MACs of the bridge and its ports."""
    own = {bridge.mac, *(each.mac for each in seen.links.values() if each.master == bridge.index)}
    return [each for each in seen.entries if each.is_set and each.mac not in own and not each.mac[0] & 1]


def _is_own(subject: Subject, packed: bytes) -> bool:
    return any(is_in_network(packed, own) for own in subject.own.values())
