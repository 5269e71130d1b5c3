"""A device of ours that is in another network namespace: its VNI and port stay taken here. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from services.dataplane.backends.backend import VxlanDevice
from services.dataplane.devices import LinkStep, LinkView, is_renamed


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A VXLAN device that was made here and is in another network namespace."""

    namespace: int
    """The kernel's number for that, as `ip netns list-id` shows it here."""
    link: LinkView
    """Without its addresses; its index is one of there."""
    is_index_free: bool = False
    """No interface here has that index."""


def return_steps(found: Iterable[Elsewhere], wanted: VxlanDevice) -> tuple[LinkStep, ...]:
    """What frees the VNI and port of a device: the kernel deletes it from here, and cannot bring it back from here.

    Ours is what has its MAC: another program's overlay may have the same VNI and live in namespaces by intention.
    By index: from Linux 5.5 on until 6.11 or a fix the kernel looks a name up here (mainline 9415d375d852). One that
    does not know the attribute looks for both here, so that it is only asked for what nothing here has.
    """
    return tuple(
        LinkStep(
            f"ip link del {each.link.name} (in the network namespace that has the id {each.namespace} here)",
            "link",
            "del",
            {**_by(each), "if_netnsid": each.namespace},
        )
        for each in found
        if is_renamed(each.link, wanted, ())
    )


def _by(found: Elsewhere) -> dict[str, int | str]:
    return {"index": found.link.index} if found.is_index_free else {"ifname": found.link.name}


def cure(wanted: VxlanDevice) -> str:
    """What to do about a device that we cannot delete, in words."""
    return (
        f"a VXLAN device with VNI {wanted.vni} and port {wanted.port} was made here and is in another network "
        "namespace now: find it with `ip -d link show type vxlan` (of those that `ip netns list-id` names, with "
        "`ip -n NAME`; of a container, behind `nsenter -t PID -n`), and delete it there with `ip link del`"
    )
