"""The paths to a peer, and what probes of one have shown: whether it answers, how large packets pass, and whether
those do of which the kernel leaves the checksum to the device. Pure.

The checksum of an ICMP echo is never left to a device, so a broken checksum offload lets pings through and loses TCP
and UDP. The large packet of a probe is therefore a UDP datagram to a closed port, which any kernel answers with an
ICMP error if the checksum is right. If it is not answered, the same datagram is sent with a checksum that this kernel
has computed; if that is not answered either, an echo request.
"""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum, StrEnum, auto
from types import MappingProxyType
from typing import Final

from flannelette.services.core.family import Address, Family, family_of
from flannelette.services.core.frozen import frozen
from flannelette.services.core.leases.lease import Subnet
from flannelette.services.core.limits import SMALLEST_MTU
from flannelette.services.dataplane.netlink.objects import Route
from flannelette.services.dataplane.peers import Overlay, Peer, PeerContext, may_be_asked


class Layer(StrEnum):
    """What carries the packets of a path."""

    OVERLAY = "overlay"
    UNDERLAY = "underlay"


@frozen
class ProbedPath:
    """A path to a peer in one address family."""

    layer: Layer
    family: Family
    """Family of the peer's subnet. Its underlay may be of the other one."""
    address: Address
    """Address that answers at the peer."""
    mtu: int
    """Bytes of the largest IP packet that should pass."""
    must_answer: bool
    """The peer has that address while its overlay works. Otherwise nobody has it before the peer's first pod."""


def paths_of(
    peer: Peer, context: PeerContext, mtus: Mapping[Hashable, int] = MappingProxyType({})
) -> Iterator[ProbedPath]:
    """The paths to a peer: of each of its subnets that is carried, the overlay's and then the underlay's.

    `mtus` are those of routes with an MTU of their own, by their keys.
    """
    overlay = context.overlay_of(peer.lease)
    if overlay is None or peer.ignored:
        return
    for subnet in peer.candidates:
        path, route = _overlay_path(subnet, overlay), route_to(peer, family_of(subnet.cidr)) if mtus else None
        limit = mtus.get(route.key, path.mtu) if route is not None else path.mtu
        yield replace(path, mtu=min(path.mtu, limit)) if limit < path.mtu else path
        if subnet.public_address is not None:
            mtu = overlay.links.underlay.mtu
            family = family_of(subnet.cidr)
            yield ProbedPath(Layer.UNDERLAY, family, subnet.public_address, mtu, must_answer=True)


def route_to(peer: Peer, family: Family) -> Route | None:
    """Returns our route to a peer's subnet of a family; None: there is none."""
    routes = (item for item in peer.objects if isinstance(item, Route) and item.family == family.af)
    return next(routes, None)


def signs_of_life(peer: Peer, context: PeerContext) -> Iterator[ProbedPath]:
    """The paths to the host of a lease that is refused: whether somebody is there who gets no packets."""
    for subnet in peer.lease.subnets if peer.ignored else ():
        if subnet.public_address is not None and may_be_asked(subnet, context.bounds):
            family, mtu = family_of(subnet.cidr), context.links.underlay.mtu
            yield ProbedPath(Layer.UNDERLAY, family, subnet.public_address, mtu, must_answer=True)


def devices_of(peer: Peer, context: PeerContext) -> Iterator[str]:
    """Yields the devices by which packets to a peer leave: overlay devices, or the underlay's interface."""
    names = context.names()
    yield from (names[item.ifindex] for item in peer.objects if isinstance(item, Route) and item.ifindex in names)


def _overlay_path(subnet: Subnet, overlay: Overlay) -> ProbedPath:
    """Returns the path to the overlay device of the peer, which has the first address of the subnet, or to the bridge
    of pods.
    """
    family = family_of(subnet.cidr)
    device = overlay.links.devices.get(family)
    if device is not None and overlay.backend.numbers_devices:
        return ProbedPath(Layer.OVERLAY, family, subnet.cidr[0], device.mtu, must_answer=True)
    mtu = overlay.backend.mtu(overlay.links.underlay)
    return ProbedPath(Layer.OVERLAY, family, subnet.cidr[1], mtu, must_answer=False)


PROOFS: Final = 5
"""Pairs in a row of which only the computed checksum was answered, after which the offload counts as broken.

More than the three of a silent path: each pair may be an accident where packets are lost anyway.
"""
_VAIN: Final = 3
"""Datagrams of both kinds in a row that were not answered, after which nobody seems to answer any."""


class LargeProbe(Enum):
    """What a large packet is."""

    ECHO = auto()
    """An ICMP echo request."""
    OFFLOADED = auto()
    """A UDP datagram whose checksum is left to the device, if that says that it can."""
    COMPUTED = auto()
    """A UDP datagram whose checksum the kernel computes."""


class Offload(StrEnum):
    """Whether the checksum offload works on a path."""

    UNKNOWN = "unknown"
    """No datagram was answered yet, or none any more: a firewall drops them, or the port is open."""
    WORKS = "works"
    """Or the device has none."""
    BROKEN = "broken"


@dataclass(slots=True)
class ChecksumRecord:
    """The large probes of one path, while small ones are answered."""

    state: Offload = Offload.UNKNOWN
    next: LargeProbe = LargeProbe.OFFLOADED
    _proofs: int = 0
    _vain: int = 0

    @property
    def is_in_doubt(self) -> bool:
        """Another probe soon tells more."""
        return self._vain < _VAIN and (self.next is not LargeProbe.OFFLOADED or 0 < self._proofs < PROOFS)

    def note(self, kind: LargeProbe, *, is_answered: bool) -> None:
        """Takes the end of a probe."""
        if kind is LargeProbe.ECHO:
            self.next = LargeProbe.OFFLOADED
        elif kind is LargeProbe.OFFLOADED and is_answered:
            self.state, self.next, self._proofs, self._vain = Offload.WORKS, LargeProbe.OFFLOADED, 0, 0
        elif kind is LargeProbe.OFFLOADED:
            self.next = LargeProbe.COMPUTED
        elif is_answered:
            self.next, self._vain = LargeProbe.OFFLOADED, 0
            self._proofs = min(self._proofs + 1, PROOFS)
            if self._proofs == PROOFS:
                self.state = Offload.BROKEN
        else:
            self.next, self._vain = LargeProbe.ECHO, min(self._vain + 1, _VAIN)
            if self._vain == _VAIN:
                self.state, self._proofs = Offload.UNKNOWN, 0


_LOSS_SECONDS: Final = 30.0
"""Length in seconds of an interval of counting losses.

The last two count, so that what was cured is soon forgotten.
"""
MISSES: Final = 3
"""Probes one after the other that were not answered, after which a path counts as silent."""
_LEAST: Final = SMALLEST_MTU[4]
"""Bytes below which the largest packet is not looked for."""
_BASE: Final = 1200
"""Bytes with which a search begins, because nearly every path carries them (BASE_PLPMTU of RFC 8899)."""
SIGN_BYTES: Final = 100
"""Bytes of a datagram that asks whether anything passes, where pings are not answered: small enough for any path."""
_CLEAN: Final = 12
"""Small probes answered one after the other, after which what was lost before is over."""
_SMOOTHING: Final = 8
"""Divisor of a new round-trip time's difference to the smoothed one, as in TCP (RFC 6298)."""


class Answering(StrEnum):
    """Whether a path answers."""

    UNKNOWN = "unknown"
    """No probe was answered or given up yet, or the path ends where nothing has to answer, and never has."""
    ANSWERS = "answers"
    SILENT = "silent"


@frozen
class Losses:
    """How many small probes of the last two intervals were lost."""

    began: float = 0.0
    """Unix time at which the present interval began."""
    present: tuple[int, int] = (0, 0)
    """Number of small probes in the present interval, and of those lost."""
    before: tuple[int, int] = (0, 0)
    """The same numbers of the interval before."""

    @property
    def part(self) -> float:
        """The part that was lost, 0 to 1."""
        sent, lost = self.present[0] + self.before[0], self.present[1] + self.before[1]
        return lost / sent if sent else 0.0

    def after(self, now: float, *, is_lost: bool) -> "Losses":
        """Counts one more probe, at this time."""
        began, present, before = self.began, self.present, self.before
        if not 0 <= now - began < _LOSS_SECONDS:
            began, present, before = now, (0, 0), present if now - began < 2 * _LOSS_SECONDS else (0, 0)
        return Losses(began, (present[0] + 1, present[1] + is_lost), before)


@frozen
class Sizes:
    """What is known of the sizes that pass, in bytes of the IP packet.

    A search begins when packets of full size are not answered. When it has ended, probes are of full size, of the
    largest size and of one byte more, in turns; and it begins again when the second is not answered any more, or the
    third is.
    """

    largest: int = 0
    """The largest that was answered, of the last search; 0: not known."""
    misses: int = 0
    """Full-size probes since the last answer to one, while small ones were answered."""
    too_large: int = 0
    """The smallest that is known not to pass; 0: none."""
    doubts: int = 0
    """Probes of the largest size since the last answer to one."""
    turns: int = 0
    """Probes since the last search has ended."""

    @property
    def is_searching(self) -> bool:
        """The largest size that passes is not known yet."""
        return self.misses >= MISSES and self.too_large - max(self.largest, _LEAST) > 1

    @property
    def middle(self) -> int:
        """The size that halves what is not known."""
        if not self.largest and self.too_large > _BASE + 1:
            return _BASE
        return (max(self.largest, _LEAST) + self.too_large) // 2

    def next(self, mtu: int) -> int:
        """The size of the next probe, once packets of `mtu` bytes do not pass."""
        if self.is_searching:
            return self.middle
        if not self.largest:
            return mtu
        return self.largest if self.doubts else (mtu, self.largest, self.too_large)[self.turns % 3]

    def after(self, size: int, mtu: int, *, is_answered: bool) -> "Sizes":
        """Takes the end of a probe where the largest packet should have `mtu` bytes."""
        if is_answered and size >= mtu:
            return Sizes(size)
        next_turn = replace(self, turns=self.turns + (not self.is_searching))
        if size >= mtu:
            misses = self.misses + 1
            return Sizes(0, misses, mtu) if misses == MISSES else replace(next_turn, misses=misses)
        if is_answered:
            has_grown = size >= self.too_large
            more = replace(next_turn, largest=max(self.largest, size), doubts=0)
            return replace(more, too_large=mtu) if has_grown else more
        if size != self.largest:
            return replace(next_turn, too_large=min(self.too_large, size))
        if self.doubts + 1 < MISSES:
            return replace(self, doubts=self.doubts + 1)
        return Sizes(0, MISSES, size)

    def doubted(self) -> "Sizes":
        """What was known, to be asked again: the next probes are of the largest size until it is answered or lost."""
        return replace(self, doubts=max(self.doubts, 1)) if self.misses >= MISSES else replace(self, misses=1)


@dataclass(slots=True)
class Record:
    """The results of the probes of one path: the overlay or the underlay, in one address family."""

    must_answer: bool
    """Whether somebody is there to answer while the peer runs."""
    mtu: int
    """Bytes of the largest IP packet that should pass."""
    checksums: ChecksumRecord | None = None
    """None: large probes are echo requests only."""
    sent: int = 0
    answered: int = 0
    smoothed: float = 0.0
    """Seconds, smoothed; 0: never answered."""
    answered_at: float = 0.0
    """Unix time of the last answer; 0: never."""
    misses: int = 0
    """Small probes since the last answer that were not answered."""
    signs: int = 0
    """Datagrams that were answered since such a probe was not."""
    vain: int = 0
    """Datagrams since the last answer to one of them that were not."""
    lost: int = 0
    """Small probes that were not answered since _CLEAN in a row were."""
    clean: int = _CLEAN
    """Small probes that were answered since one was not."""
    sizes: Sizes = Sizes()
    losses: Losses = Losses()

    @property
    def state(self) -> Answering:
        """Whether the peer answers on this path."""
        if self.misses >= MISSES and not self.is_mute:
            return Answering.SILENT if self.must_answer or self.answered else Answering.UNKNOWN
        return Answering.ANSWERS if self.answered or self.is_mute else Answering.UNKNOWN

    @property
    def is_mute(self) -> bool:
        """Whether datagrams are answered and echo requests are not: packets pass, and somebody refuses pings."""
        return self.misses >= MISSES and self.signs > 0 and self.vain < MISSES

    @property
    def loss(self) -> float:
        """The part of the small probes of the last minute that was not answered, 0 to 1.

        It is counted from the first answer on, and anew when a path answers again that had been silent.
        """
        return 0.0 if self.is_mute else self.losses.part

    @property
    def is_leaking(self) -> bool:
        """The peer answers, and some of the small probes are lost."""
        return self.state is Answering.ANSWERS and not self.is_mute and self.lost >= MISSES

    @property
    def is_narrow(self) -> bool:
        """Small packets pass and full-size ones do not."""
        return self.state is Answering.ANSWERS and self.sizes.misses >= MISSES

    @property
    def is_searching(self) -> bool:
        """The largest size that passes is not known yet."""
        return self.is_narrow and self.sizes.is_searching

    @property
    def standing(self) -> tuple[object, ...]:
        """What is told when it changes."""
        return self.state, self.is_mute, self.is_narrow, self.is_leaking, self.offload, self.limit, self.is_searching

    @property
    def limit(self) -> int | None:
        """The largest packet that passes, where that is less than it should be; 0: all pass; None: it is not known.

        While the search lasts it is the largest so far: packets of that size pass at once.
        """
        if self.is_narrow:
            return self.sizes.largest or None
        return 0 if self.sizes.largest >= self.mtu else None

    @property
    def next_size(self) -> int:
        """The size of the next large probe: full, or where the search for the largest size is."""
        if self.misses:
            return min(SIGN_BYTES, self.mtu)
        return self.sizes.next(self.mtu) if self.is_narrow else self.mtu

    @property
    def next_large(self) -> LargeProbe:
        """The kind of the next large probe: while a size does not pass, checksums have to wait."""
        if self.misses:
            return LargeProbe.COMPUTED  # does nothing pass, or no echo?
        return LargeProbe.ECHO if self.checksums is None or self.sizes.misses else self.checksums.next

    @property
    def offload(self) -> Offload:
        """Whether the checksum offload works."""
        return self.checksums.state if self.checksums is not None else Offload.UNKNOWN

    @property
    def is_in_doubt(self) -> bool:
        """Another probe soon tells more."""
        if self.misses:
            return self.misses < MISSES or (self.is_mute and self.vain > 0)
        if self.lost:
            return True
        if 0 < self.sizes.misses < MISSES or self.is_searching or self.sizes.doubts:
            return True
        return self.checksums is not None and not self.sizes.misses and self.checksums.is_in_doubt

    def hear(self) -> bool:
        """Takes that packets are lost because of their size, as a router has told: whether that is news."""
        is_news = self.state is Answering.ANSWERS and not self.is_in_doubt
        self.sizes = self.sizes.doubted() if is_news else self.sizes
        return is_news

    def note(self, size: int, round_trip: float | None, now: float, large: LargeProbe = LargeProbe.ECHO) -> None:
        """Takes the end of a probe of so many bytes; `round_trip` None: it was not answered. 0 bytes: a small one."""
        if size:
            self._note_large(size, large, is_answered=round_trip is not None)
            return
        self.sent += 1
        if round_trip is not None and (not self.answered or self.misses >= MISSES):
            self.losses = Losses(self.losses.began)  # nobody was there, or that is over
        self.losses = self.losses.after(now, is_lost=round_trip is None)
        if round_trip is None:
            self.misses += 1
            self.lost, self.clean = self.lost + bool(self.answered), 0
            return
        self.clean += 1
        self.lost = 0 if self.is_mute or self.clean >= _CLEAN else self.lost
        self.answered += 1
        self.misses = self.signs = self.vain = 0
        self.answered_at = now
        self.smoothed += (round_trip - self.smoothed) / (_SMOOTHING if self.smoothed else 1)

    def _note_large(self, size: int, kind: LargeProbe, *, is_answered: bool) -> None:
        if kind is not LargeProbe.ECHO and self.misses:
            self.signs, self.vain = (self.signs + 1, 0) if is_answered else (self.signs, self.vain + 1)
        if not is_answered and (self.state is not Answering.ANSWERS or self.misses):
            return  # nothing passes, whatever it is
        if size <= SIGN_BYTES and kind is not LargeProbe.ECHO:
            return  # whether a datagram is answered has been noted
        if self.checksums is not None:
            self.checksums.note(kind, is_answered=is_answered)
        if is_answered or kind is LargeProbe.ECHO:  # else an echo tells whether its size passes
            self.sizes = self.sizes.after(size, self.mtu, is_answered=is_answered)
