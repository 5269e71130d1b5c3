"""Matches and targets of xtables that are understood, whether a table is legacy or one of iptables-nft. Pure."""

import struct
from collections.abc import Iterator
from typing import Final

from services.masq.diagnose.verdict import Condition, Effect

_STATE, _NEW = 0x01, 0x08  # XT_CONNTRACK_STATE, XT_CONNTRACK_STATE_BIT(IP_CT_NEW)

_SIZES: Final = {"tcp": 12, "udp": 9, "conntrack": 152, "state": 4}
"""Bytes that are read of a match."""

PROTOCOLS: Final = {1: "icmp", 6: "tcp", 17: "udp", 58: "ipv6-icmp"}
TARGETS: Final = {
    "REJECT": Effect.DROP,
    **dict.fromkeys(("MARK", "CONNMARK", "LOG", "NFLOG", "TCPMSS", "CT", "NOTRACK", "DSCP", "TRACE"), Effect.NOTHING),
}
"""Beside the verdicts; any other target may do anything."""


def condition_of(name: str, revision: int, data: bytes) -> Iterator[Condition]:
    """What a match asks for; nothing for a comment."""
    if len(data) < _SIZES.get(name, 0):
        yield Condition(unknown=True)
    elif name in ("tcp", "udp"):
        yield from _ports(name, data)
    elif name == "conntrack" and revision >= 2:
        flags, inverse, states = struct.unpack_from("=HHH", data, 146)
        if flags & _STATE:
            yield Condition(new=bool(states & _NEW) is not bool(inverse & _STATE))
        if flags & ~_STATE:
            yield Condition(unknown=True)
    elif name == "state":
        yield Condition(new=bool(struct.unpack_from("=I", data)[0] & _NEW))
    elif name != "comment":
        yield Condition(unknown=True)


def _ports(name: str, data: bytes) -> Iterator[Condition]:
    """Of struct xt_tcp, xt_udp: ports of the source, of the destination, and (TCP) options and flags."""
    from_first, from_last, first, last = struct.unpack_from("=HHHH", data)
    option, mask, compare = struct.unpack_from("=BBB", data, 8) if name == "tcp" else (0, 0, 0)
    inverse = data[11] if name == "tcp" else data[8]
    if (first, last) != (0, 65535):
        yield Condition(ports=(first, last), negated=bool(inverse & 2))
    if (from_first, from_last) != (0, 65535) or option or mask or compare:
        yield Condition(unknown=True)


def port_text(condition: Condition) -> str:
    """`--dport 8472`."""
    first, last = condition.ports or (0, 0)
    return f"{'! ' if condition.negated else ''}--dport {first if first == last else f'{first}:{last}'}"
