"""Whether packets arrive whose checksum the kernel leaves to the device. Pure.

The checksum of an ICMP echo is never left to a device, so a broken checksum offload lets pings through and loses TCP
and UDP. The large packet of a probe is therefore a UDP datagram to a closed port, which any kernel answers with an
ICMP error if the checksum is right. If it is not answered, the same datagram is sent with a checksum that this kernel
has computed; if that is not answered either, an echo request.
"""

from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import Final

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
