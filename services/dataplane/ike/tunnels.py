"""What charon has negotiated: tunnels, of what its `list-sas` tells, and which of them are left over. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from flannelette.services.dataplane.netlink.ipsec.values import IkeConnection, connection_of

Section = Mapping[str, Any]
"""A section of vici: keys with texts, lists of texts, or sections."""

ANSWERED: Final = "answered"
"""The child of a connection for the tunnel that the peer asks for."""
_SETTLED_SECONDS: Final = 10
_PEER_SETTLED_SECONDS: Final = 30
_UP: Final = frozenset((b"INSTALLED", b"UPDATING", b"REKEYING", b"REKEYED"))


@dataclass(frozen=True, slots=True)
class Tunnel:
    """What a connection of ours has negotiated. Its text is in the words of `swanctl --list-sas`."""

    ike: str
    """The state of its IKE SA; empty: there is none."""
    is_up: bool = False
    """Packets can be sent: an ESP SA that this end asked for is installed."""
    is_answered: bool = False
    """Packets can be received: one that the peer asked for is."""
    received: int = 0
    """Bytes received through the tunnel."""
    sent: int = 0
    attempts: int = 0
    """How many IKE SAs this end is negotiating."""

    def __str__(self) -> str:
        if not self.ike:
            return "no IKE SA"
        child = f"INSTALLED, {self.received} bytes in, {self.sent} bytes out" if self.is_up else "no ESP SA"
        return f"IKE {self.ike}, {child}{' but the one that the peer asked for' * (self.is_answered > self.is_up)}"


def tunnels_in(listed: Iterable[Section]) -> dict[str, Tunnel]:
    """Reads from an answer to `list-sas` the tunnel of each connection, by name: the best of the SAs that it may
    have.
    """
    found: dict[str, Tunnel] = {}
    for section in listed:
        for name, values in section.items():
            children = _installed(values)
            before, answered = (
                found.get(name, Tunnel("")),
                [c for c in children if c.get("name") == ANSWERED.encode()],
            )
            is_up = len(answered) < len(children)
            found[name] = Tunnel(
                before.ike if before.is_up or before.is_answered else values.get("state", b"").decode(),
                before.is_up or is_up,
                before.is_answered or bool(answered),
                before.received + sum(int(child.get("bytes-in", b"0")) for child in children),
                before.sent + sum(int(child.get("bytes-out", b"0")) for child in children),
                before.attempts + (not children and values.get("initiator") == b"yes"),
            )
    return found


def superseded_in(listed: Iterable[Section]) -> set[str]:
    """The ids of IKE SAs of ours, of what `list-sas` tells, in whose place the same end has made a newer one.

    Each end makes one, and another one when its charon was replaced. Both ends have used the newest for a while then,
    which is the one that was established last, as the kernel has it. The end that made them is first to end them.
    """
    made: dict[tuple[IkeConnection, bool], dict[int, int]] = {}
    for item, values in _ours(listed):
        if values.get("state") == b"ESTABLISHED":
            for is_answered in _kinds(values):
                ages = made.setdefault((item, is_answered), {})
                ages[int(values["uniqueid"])] = int(values.get("established", b"0"))
    old, kept = set[int](), set[int]()
    for (_, is_answered), ages in made.items():
        newest = min(ages, key=lambda number, ages=ages: (ages[number], -number))  # type: ignore[misc]
        is_settled = ages[newest] >= (_PEER_SETTLED_SECONDS if is_answered else _SETTLED_SECONDS)
        kept |= {newest} if is_settled else ages.keys()
        old |= ages.keys()
    return {str(number) for number in old - kept}


def outdated_in(listed: Iterable[Section]) -> set[IkeConnection]:
    """Reads from an answer to `list-sas` the connections of which the peer has made another tunnel and this end none
    after it.

    The peer has another charon then, which does not know the tunnel that this end has asked for before. Where this
    end has as many, both charons have been there all the time.
    """
    answered: dict[IkeConnection, set[int]] = {}
    asked: dict[IkeConnection, set[int]] = {}
    for item, values in _ours(listed):
        kinds, number = _kinds(values), int(values["uniqueid"])
        if True in kinds:
            answered.setdefault(item, set()).add(number)
        elif kinds or values.get("initiator") == b"yes":
            asked.setdefault(item, set()).add(number)
    return {
        item
        for item, numbers in answered.items()
        if len(numbers) > len(asked.get(item, {0})) and max(numbers) > max(asked.get(item, {0}))
    }


def _ours(listed: Iterable[Section]) -> Iterator[tuple[IkeConnection, Section]]:
    for section in listed:
        for name, values in section.items():
            if (item := connection_of(name)) is not None:
                yield item, values


def _kinds(values: Section) -> set[bool]:
    """Whether the peer has asked for the tunnels that are installed: either end may have renewed the IKE SA."""
    return {child.get("name") == ANSWERED.encode() for child in _installed(values)}


def _installed(values: Section) -> list[Section]:
    return [child for child in values.get("child-sas", {}).values() if child.get("state") in _UP]
