"""Addresses that `host-local` has given to pods: which of them belong to a container that is gone. Pure.

The CNI plugin `host-local` keeps a file for each address that it has given, and removes it when the runtime deletes
the pod. A crash, or a runtime that has lost its state, leaves files behind, until no address is left for new pods.

* A container lives if any sign says so, for any of its addresses.
* It is dead if none does, and a sign is there that would: CNI's record has named its interface, or every network
  namespace was looked into. What cannot be seen is no sign of death: then it is unknown, and stays.
* Only what `REQUIRED_LOOKS` looks have found dead, and none in between alive, is given back.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import field
from enum import StrEnum
from ipaddress import ip_address
from typing import Final

from flannelette.services.core.conditions import SOON, WARNING, Condition
from flannelette.services.core.conditions import found as condition
from flannelette.services.core.family import Address, Network
from flannelette.services.core.frozen import frozen

REQUIRED_LOOKS: Final = 3
"""Looks that have found a container dead, before its addresses are given back."""
LOOKS_APART: Final = 60.0
"""Seconds between two of these looks, at least."""
_NAMED: Final = 3
_SCARCE: Final = 10
"""Part of the addresses, such as a tenth, that is free where new pods will soon have none."""


@frozen
class Reservation:
    """An address that `host-local` gives to nobody else, as the file of that name says."""

    network: str
    """Name of the CNI network: the directory of the file."""
    name: str
    """Name of the file: the address, on some hosts with an underscore for each colon."""
    packed: bytes
    container: str = ""
    """Container ID; empty: the file is empty, as after a power cut, or cannot be read."""
    interface: str = ""
    """Name of the interface inside the pod; empty: not said."""
    version: tuple[int, int] = (0, 0)
    """Inode and time of the last change: a file that was removed and made again is another reservation."""
    obstacle: str = ""
    """Why the file cannot be read; empty: it was read."""

    @property
    def address(self) -> Address:
        """The address that is reserved."""
        return ip_address(self.packed)


@frozen
class CniPod:
    """A pod as CNI has it on record."""

    addresses: tuple[bytes, ...]
    bridge: str = ""
    """Name of the bridge that the CNI plugin `bridge` has attached the interface to; empty: unknown."""
    interface: str = ""
    """Name of the host's end of the interface; empty: unknown."""
    gateways: tuple[bytes, ...] = ()
    """Addresses to which the pod sends what is for others; none: not known."""
    has_hairpin: bool = False
    """The CNI configuration asks for hairpin mode."""
    is_isolated: bool = False
    """The CNI configuration asks for an isolated port."""
    container: str = ""
    """Container ID; empty: unknown."""
    inside: str = ""
    """Name of the interface inside the pod; empty: unknown."""
    sandbox: str = ""
    """Path of the pod's network namespace; empty: unknown."""
    mac: bytes = b""
    """MAC of the interface inside the pod; empty: unknown."""


@frozen
class CniPods:
    """The pods that CNI has on record."""

    pods: Sequence[CniPod] = ()
    obstacle: str = ""
    """Why they are not known; empty: they are."""
    reservations: Sequence[Reservation] = ()
    """Addresses that `host-local` has given."""


class State(StrEnum):
    """Whether the container lives that an address is reserved for."""

    ALIVE = "ALIVE"
    DEAD = "DEAD"
    UNKNOWN = "UNKNOWN"


class Sign(StrEnum):
    """What tells whether a container lives."""

    RUNTIME = "RUNTIME"
    PLUGIN = "PLUGIN"
    NAMESPACE = "NAMESPACE"
    INTERFACE = "INTERFACE"
    NEIGHBOUR = "NEIGHBOUR"
    NONE = "NONE"


@frozen
class Verdict:
    """Whether a container lives, and by what sign."""

    state: State
    sign: Sign
    reason: str
    """Words that say what was seen, or what could not be."""


@frozen
class Signs:
    """What one look has shown. It is taken in this order, after the reservations were read: whoever was about to
    start a pod by then is seen by one of the later signs.
    """

    pods: Sequence[CniPod] = ()
    """Results that CNI keeps of pods."""
    plugins: Set[str] = frozenset()
    """Containers for which a CNI plugin runs."""
    known: Mapping[str, str] = field(default_factory=dict)
    """Containers that a runtime knows, in any state, each with the runtime."""
    silent_runtime: str = ""
    """Why a runtime that is there does not say what it knows; empty: there is none, or it has said it."""
    links: Set[str] = frozenset()
    """Names of the interfaces of the host."""
    strangers: Sequence[str] = ()
    """Interfaces of the host that lead to a pod of which the addresses are not known."""
    held: Mapping[bytes, str] = field(default_factory=dict)
    """Addresses that a network namespace has, each with the namespace."""
    namespaces: Set[str] = frozenset()
    """Paths of network namespaces that are there."""
    hidden: str = "network namespaces are not looked into"
    """Why some network namespaces are not known; empty: each was looked into."""
    answering: Set[bytes] = frozenset()
    """Addresses that have answered by ARP or NDP a moment ago."""


def verdicts(reservations: Iterable[Reservation], signs: Signs) -> dict[Reservation, Verdict]:
    """Says of each reservation whether its container lives."""
    found = [*reservations]
    record = {(each.container, each.inside): each for each in signs.pods if each.container}
    lives = {each: life for each in found if (life := _life(each, signs, record)) is not None}
    by_container = {each.container: life for each, life in lives.items() if each.container}
    return {
        each: lives.get(each) or by_container.get(each.container) or _without_life(each, signs, record)
        for each in found
    }


def _life(each: Reservation, signs: Signs, record: Mapping[tuple[str, str], CniPod]) -> Verdict | None:
    """The first sign of life; None: there is none."""
    pod = record.get((each.container, each.interface))
    told = (
        (Sign.RUNTIME, each.container in signs.known, f"{signs.known.get(each.container)} knows the container"),
        (Sign.PLUGIN, each.container in signs.plugins, "a CNI plugin runs for it"),
        (Sign.NAMESPACE, each.packed in signs.held, f"{signs.held.get(each.packed)} has the address"),
        (Sign.INTERFACE, pod is not None and pod.interface in signs.links, f"{pod and pod.interface} is there"),
        (Sign.NAMESPACE, pod is not None and pod.sandbox in signs.namespaces, f"{pod and pod.sandbox} is there"),
        (Sign.NEIGHBOUR, each.packed in signs.answering, "it has answered by ARP or NDP"),
    )
    return next((Verdict(State.ALIVE, sign, reason) for sign, is_there, reason in told if is_there), None)


def _without_life(each: Reservation, signs: Signs, record: Mapping[tuple[str, str], CniPod]) -> Verdict:
    pod = record.get((each.container, each.interface))
    unknown = next(
        filter(
            None,
            (
                f"the file cannot be read ({each.obstacle})" if each.obstacle else "",
                signs.silent_runtime,
                f"{signs.strangers[0]} leads to a pod of which the address is not known" if signs.strangers else "",
            ),
        ),
        "",
    )
    if not unknown and pod is not None and pod.interface:
        return Verdict(State.DEAD, Sign.INTERFACE, f"its interface {pod.interface} is gone")
    if not unknown and not signs.hidden:
        return Verdict(State.DEAD, Sign.NAMESPACE, "no network namespace has the address")
    return Verdict(State.UNKNOWN, Sign.NONE, unknown or signs.hidden)


@frozen
class Looks:
    """How often a reservation was found dead, without a sign of life since."""

    count: int
    last: float
    """Time of the last look that counts, in seconds of a clock that nobody sets."""


def counted(
    before: Mapping[Reservation, Looks], found: Mapping[Reservation, Verdict], now: float, apart: float = LOOKS_APART
) -> dict[Reservation, Looks]:
    """Counts one look. What is alive, or no longer reserved, begins anew; a look that cannot tell does not count."""
    looks = dict[Reservation, Looks]()
    for each, verdict in found.items():
        last = before.get(each)
        if verdict.state is State.DEAD and (last is None or now - last.last >= apart):
            looks[each] = Looks(last.count + 1 if last else 1, now)
        elif verdict.state is not State.ALIVE and last is not None:
            looks[each] = last
    return looks


def leaked(looks: Mapping[Reservation, Looks]) -> frozenset[Reservation]:
    """Returns those that enough looks have found dead."""
    return frozenset(each for each, seen in looks.items() if seen.count >= REQUIRED_LOOKS)


def inside(reservations: Iterable[Reservation], subnets: Iterable[Network]) -> list[Reservation]:
    """Returns those in these subnets, in the order of their addresses."""
    wanted = [*subnets]
    found = [each for each in reservations if any(each.address in subnet for subnet in wanted)]
    return sorted(found, key=lambda each: (len(each.packed), each.packed, each.network))


def lost(
    found: Mapping[Reservation, Verdict], subnets: Iterable[Network], leaked: Set[Reservation]
) -> Iterator[Condition]:
    """Yields for each subnet the condition that some of its addresses, which are `leaked`, are of dead containers.

    `found` has all that are reserved.
    """
    for subnet in subnets:
        reserved = inside(found, [subnet])
        gone = [each for each in reserved if found[each].state is State.DEAD and each in leaked]
        if not gone:
            continue
        size, first = room(subnet), gone[0]
        free = max(size - len(reserved), 0)
        names = [str(each.address) for each in gone]
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        yield condition(
            "pod.addresses-leaked",
            addresses=f"{len(gone)} address{'es' if len(gone) > 1 else ''}",
            are="are" if len(gone) > 1 else "is",
            subnet=subnet,
            names=", ".join(names[:_NAMED]) + more,
            free=free if subnet.version == 4 else "enough",
            cure="flannelette addresses --release",
            evidence=f"networks/{first.network}/{first.name}: {first.container or 'empty'}; {found[first].reason}",
            weight=SOON if free * _SCARCE <= size else WARNING,
            is_part=True,
        )


def room(subnet: Network) -> int:
    """Returns for how many pods `host-local` has addresses: all but those of network, gateway and broadcast."""
    return max(subnet.num_addresses - (3 if subnet.version == 4 else 2), 0)
