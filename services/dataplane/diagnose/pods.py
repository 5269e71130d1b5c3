"""The pods of this node, by what the kernel shows of them: their interfaces, and the bridge of these."""

from services.dataplane.diagnose.bridge import bridge_index
from services.dataplane.diagnose.seen import HostLink, Seen, Subject


def pods_bridge(subject: Subject, seen: Seen) -> HostLink | None:
    """The bridge of the pods; None: there is none, or pods are attached in another way."""
    found = (bridge_index(subject, seen, family) for family in subject.own)
    return next((seen.host_links[index] for index in found if index is not None and index in seen.host_links), None)


def has_pods(subject: Subject, seen: Seen) -> bool:
    """Whether pods are here that send and receive: the host's ends of their interfaces are at their bridge, or alone.

    A pod that the plugin `ptp` has attached has an interface without a bridge.
    """
    bridge = pods_bridge(subject, seen)
    places = {0, bridge.index if bridge else 0}
    return any(
        each.is_of_pod and each.is_up and each.is_running and each.master in places
        for each in seen.host_links.values()
        if each.index != subject.underlay.index
    )
