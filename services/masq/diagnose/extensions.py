"""Matches and targets of xtables that are understood, whether a table is legacy or one of iptables-nft.

The structures are those of linux/netfilter/xt_*.h.
"""

import struct
import time
from collections.abc import Callable, Iterator
from functools import partial
from ipaddress import ip_address, summarize_address_range
from typing import Final

from flannelette.services.core.family import Network
from flannelette.services.masq.diagnose.verdict import Condition, Effect, Flow, Match, State, Test
from flannelette.services.masq.kernel.ip_sets import is_member, set_name

_STATE, _UNTRACKED = 0x01, 0x100  # XT_CONNTRACK_STATE, XT_CONNTRACK_STATE_UNTRACKED
_LOCAL, _UNICAST = 0x04, 0x02  # XT_ADDRTYPE_
_DAY: Final = 86400

PROTOCOLS: Final = {1: "icmp", 6: "tcp", 17: "udp", 58: "ipv6-icmp"}
_NOTHING: Final = (
    "LOG NFLOG ULOG TCPMSS TCPOPTSTRIP DSCP TOS TTL HL ECN TRACE AUDIT CHECKSUM CLASSIFY SET TEE SECMARK CONNSECMARK "
    "IDLETIMER RATEEST LED"
)
_ACCEPTS: Final = "NFQUEUE QUEUE TPROXY SYNPROXY DNAT REDIRECT"
"""Targets that hand the packet to another program, or let it go on."""
TARGETS: Final = {
    "REJECT": Effect.DROP,
    **dict.fromkeys(("MASQUERADE", "SNAT", "NETMAP"), Effect.TRANSLATE),
    **dict.fromkeys(_NOTHING.split(), Effect.NOTHING),
    **dict.fromkeys(("MARK", "CONNMARK", "CT"), Effect.NOTHING),
    **dict.fromkeys(_ACCEPTS.split(), Effect.ACCEPT),
    "NOTRACK": Effect.UNTRACK,
}
"""Beside the verdicts; any other target may do anything."""

Asked = Iterator[tuple[Condition, str]]
"""Each condition with its text, as iptables writes it."""
UNKNOWN: Final = Condition(unknown=True)


def effect_of(name: str, revision: int, data: bytes) -> tuple[Effect, tuple[int, int] | None]:
    """The effect of a target, and its change of the mark; see ForeignRule."""
    if name == "CT" and len(data) >= 2 and struct.unpack_from("=H", data)[0] & 1:
        return Effect.UNTRACK, None
    if name == "MARK" and len(data) >= 8 and revision >= 2:
        mark, mask = struct.unpack_from("=II", data)
        return Effect.NOTHING, (mask, mark)
    if name == "CONNMARK" and len(data) >= 13 and data[12] == 2:  # restore: a new connection has none
        return Effect.NOTHING, (struct.unpack_from("=I", data, 8)[0], 0)
    return TARGETS.get(name, Effect.UNKNOWN), None


def conditions_of(name: str, revision: int, data: bytes, version: int) -> Asked:
    """What a match asks for; nothing for a comment. `version`: of IP, in whose table it stands."""
    of_version = _MATCHES_OF_VERSION.get(name)
    read = partial(of_version, version) if of_version else _MATCHES.get(name)
    if read is None:
        yield UNKNOWN, f"-m {name}"
        return
    try:
        yield from read(revision, data)
    except (struct.error, IndexError, ValueError):
        yield UNKNOWN, f"-m {name}"


def _tcp(_revision: int, data: bytes) -> Asked:
    option, mask, wanted, inverse = struct.unpack_from("=BBBB", data, 8)
    yield from _ports(data, inverse)
    if mask or wanted:
        text = "--syn" if (mask, wanted) == (0x17, 0x02) else f"--tcp-flags {mask:#x} {wanted:#x}"
        negated = bool(inverse & 4)
        yield Condition(test=Test("tcp flags", wanted, wanted, mask), negated=negated), _not(text, negated)
    if option:
        yield UNKNOWN, f"--tcp-option {option}"


def _udp(_revision: int, data: bytes) -> Asked:
    yield from _ports(data, data[8])


def _ports(data: bytes, inverse: int) -> Asked:
    """Source and destination ports in struct xt_tcp or xt_udp."""
    first, last, to_first, to_last = struct.unpack_from("=HHHH", data)
    if (first, last) != (0, 65535):
        negated = bool(inverse & 1)
        yield (
            Condition(test=Test("source port", first, last), negated=negated),
            _not(_span("--sport", first, last), negated),
        )
    if (to_first, to_last) != (0, 65535):
        negated = bool(inverse & 2)
        yield (
            Condition(ports=(to_first, to_last), negated=negated),
            _not(_span("--dport", to_first, to_last), negated),
        )


def _multiport(revision: int, data: bytes) -> Asked:
    which, count = data[0], data[1]
    ports = struct.unpack_from("=15H", data, 2)
    flags, negated = (data[32:47], bool(data[47])) if revision else (bytes(15), False)
    spans, place = [], 0
    while place < min(count, 15):
        last = place + 1 if flags[place] else place
        spans.append((ports[place], ports[last]))
        place = last + 1
    source = [Condition(test=Test("source port", *span)) for span in spans]
    to = [Condition(ports=span) for span in spans]
    one_of = (*(source if which != 1 else ()), *(to if which != 0 else ()))
    option = {0: "--sports", 1: "--dports"}.get(which, "--ports")
    text = ",".join(f"{first}" if first == last else f"{first}:{last}" for first, last in spans)
    yield Condition(one_of=one_of, negated=negated), f"-m multiport {_not(f'{option} {text}', negated)}"


def _conntrack(revision: int, data: bytes) -> Asked:
    flags, inverse = struct.unpack_from("=HH", data, 146)
    states = struct.unpack_from("=H", data, 150)[0] if revision >= 2 else data[150]
    if flags & _STATE:
        negated = bool(inverse & _STATE)
        known = states & 0x0F | (State.UNTRACKED if states & _UNTRACKED else 0)
        text = ",".join(state.name or "" for state in State if state & known)
        text += ",DNAT" if states & 0x80 else ""
        yield Condition(states=known, negated=negated), f"-m conntrack {_not(f'--ctstate {text}', negated)}"
    if flags & ~_STATE:
        yield UNKNOWN, "-m conntrack ..."


def _state(_revision: int, data: bytes) -> Asked:
    states = struct.unpack_from("=I", data)[0]
    yield (
        Condition(states=states),
        f"-m state --state {','.join(state.name or '' for state in State if state & states)}",
    )


def _mark(_revision: int, data: bytes) -> Asked:
    mark, mask, negated = struct.unpack_from("=II?", data)
    yield (
        Condition(test=Test("mark", mark, mark, mask), negated=negated),
        f"-m mark {_not(f'--mark {mark:#x}/{mask:#x}', negated)}",
    )


def _addrtype(version: int, revision: int, data: bytes) -> Asked:
    source, to, *rest = struct.unpack_from("=HHI" if revision else "=HHII", data)
    inverse = rest[0] if revision else bool(rest[0]) | bool(rest[1]) << 1
    for option, types, negated, field in (
        ("--src-type", source, bool(inverse & 1), "is_ours"),
        ("--dst-type", to, bool(inverse & 2), "is_for_us"),
    ):
        if not types:
            continue
        words = ",".join(word for bit, word in ((_LOCAL, "LOCAL"), (_UNICAST, "UNICAST")) if types & bit) or "..."
        text = f"-m addrtype {_not(f'{option} {words}', negated)}"
        if version == 6 and types & _UNICAST:  # so is an address of this host, and all types have to fit
            types = types & ~_UNICAST if types & _LOCAL else types | _LOCAL
        is_any = types & _LOCAL and types & _UNICAST
        if is_any or not types & (_LOCAL | _UNICAST):
            yield Condition(always=bool(is_any), negated=negated), text
        elif field == "is_ours":
            yield Condition(is_ours=bool(types & _LOCAL), negated=negated), text
        else:
            yield Condition(is_for_us=bool(types & _LOCAL), negated=negated), text


def _iprange(version: int, _revision: int, data: bytes) -> Asked:
    flags, size = data[64], 4 if version == 4 else 16
    for option, place, asked, inverse in (("--src-range", 0, 1, 0x10), ("--dst-range", 32, 2, 0x20)):
        if not flags & asked:
            continue
        first, last = (ip_address(data[at : at + size]) for at in (place, place + 16))
        networks: tuple[Network, ...] = tuple(summarize_address_range(first, last))
        one_of = tuple(Condition(source=n) if place == 0 else Condition(destination=n) for n in networks)
        negated = bool(flags & inverse)
        yield Condition(one_of=one_of, negated=negated), f"-m iprange {_not(f'{option} {first}-{last}', negated)}"


def _mac(_revision: int, data: bytes) -> Asked:
    number, negated = int.from_bytes(data[:6], "big"), any(data[6:12])
    text = f"--mac-source {data[:6].hex(':')}"
    yield Condition(test=Test("mac", number, number), negated=negated), f"-m mac {_not(text, negated)}"


def _owner(_revision: int, data: bytes) -> Asked:
    """Condition of the match `owner`.

    A packet that no process of this host sends has no owner, and matches only negations.
    """
    is_negation = data[16] == data[17]
    elsewhere = Condition(is_ours=False) if is_negation else Condition(always=False)
    yield Condition(one_of=(elsewhere, Condition(is_ours=True, unknown=True))), "-m owner"


def _length(_revision: int, data: bytes) -> Asked:
    first, last, negated = struct.unpack_from("=HH?", data)
    yield (
        Condition(test=Test("length", first, last), negated=negated),
        f"-m length {_not(_span('--length', first, last), negated)}",
    )


def _icmp(_revision: int, data: bytes) -> Asked:
    kind, first, last, inverse = data[0], data[1], data[2], data[3]
    if kind != 255:
        codes = (Condition(test=Test("icmp code", first, last)),) if (first, last) != (0, 255) else ()
        each = (Condition(test=Test("icmp type", kind, kind)), *codes)
        yield Condition(each=each, negated=bool(inverse & 1)), _not(f"--icmp-type {kind}", bool(inverse & 1))


def _time(_revision: int, data: bytes) -> Asked:
    yield Condition(asks=lambda flow: _is_now(flow, data)), "-m time"


def _is_now(flow: Flow, data: bytes) -> Match:
    start, stop, day_start, day_stop, days, week, flags = struct.unpack_from("=IIIIIBB", data)
    now = flow.clock
    if not now:
        return Match.MAYBE
    if flags & 1:  # the kernel's time zone, which it does not tell
        now += time.localtime(now).tm_gmtoff
    of_day, date = now % _DAY, time.gmtime(now)
    is_day = day_start <= of_day <= day_stop if day_start <= day_stop else of_day >= day_start or of_day <= day_stop
    is_it = start <= now <= (stop or now) and is_day and week >> (date.tm_wday + 1) & 1 and days >> date.tm_mday & 1
    return Match.YES if is_it else Match.NO


def _set(revision: int, data: bytes) -> Asked:
    index, dimension, flags = struct.unpack_from("=HBB", data)
    name, negated = set_name(index), bool(flags & 1)
    ends = ["src" if flags >> place & 1 else "dst" for place in range(1, dimension + 1)]

    def asks(flow: Flow) -> Match:
        return _is_in_set(flow, name, ends) if revision else Match.MAYBE

    yield Condition(asks=asks, negated=negated), f"-m set {_not(f'--match-set {name} {chr(44).join(ends)}', negated)}"


def _is_in_set(flow: Flow, name: str, ends: list[str]) -> Match:
    """The kernel is asked about one packet; a set of other things than addresses and ports is not understood."""
    address = flow.source if ends[0] == "src" else flow.destination
    if address.prefixlen != address.max_prefixlen or not name:
        return Match.MAYBE
    port = {"src": flow.source_port, "dst": flow.port}[ends[1]] if len(ends) > 1 else 0
    found = is_member(name, address.network_address, flow.protocol if port else 0, port)
    return Match.MAYBE if found is None else Match.YES if found else Match.NO


def _ttl(_revision: int, data: bytes) -> Asked:
    """Condition of the match `ttl`: equal, not equal, less or greater."""
    mode, number = data[0], data[1]
    first, last = {2: (0, number - 1), 3: (number + 1, 255)}.get(mode, (0, 255))
    condition = Condition(test=Test("ttl", first, last)) if mode in (2, 3) else UNKNOWN
    yield condition, f"-m ttl {('--ttl-eq', '! --ttl-eq', '--ttl-lt', '--ttl-gt')[mode]} {number}"


def _pkttype(_revision: int, data: bytes) -> Asked:
    kind, inverse = struct.unpack_from("=ii", data)
    yield Condition(always=kind == 0, negated=bool(inverse)), "-m pkttype"


def _policy(_revision: int, data: bytes) -> Asked:
    """Condition of the match `policy`: whether IPsec carries the packet."""
    flags = struct.unpack_from("=H", data, 304)[0]
    yield (
        Condition(always=True) if flags & 4 else UNKNOWN,
        "-m policy --pol none" if flags & 4 else "-m policy --pol ipsec",
    )


def _rpfilter(_revision: int, data: bytes) -> Asked:
    """Condition of the match `rpfilter`, whose answer depends on routes; the dataplane looks at those."""
    yield Condition(always=not data[0] & 8), f"-m rpfilter{' --invert' if data[0] & 8 else ''}"


def _comment(_revision: int, _data: bytes) -> Asked:
    yield from ()


_MATCHES_OF_VERSION: Final[dict[str, Callable[[int, int, bytes], Asked]]] = {
    "addrtype": _addrtype, "iprange": _iprange,
}  # fmt: skip
_MATCHES: Final[dict[str, Callable[[int, bytes], Asked]]] = {
    "tcp": _tcp, "udp": _udp, "udplite": _udp, "multiport": _multiport, "conntrack": _conntrack, "state": _state,
    "mark": _mark, "mac": _mac, "owner": _owner, "length": _length,
    "icmp": _icmp, "icmp6": _icmp, "time": _time, "set": _set, "pkttype": _pkttype, "policy": _policy,
    "rpfilter": _rpfilter, "ttl": _ttl, "hl": _ttl, "comment": _comment,
}  # fmt: skip


def _not(text: str, negated: bool) -> str:
    return f"! {text}" if negated else text


def _span(option: str, first: int, last: int) -> str:
    return f"{option} {first if first == last else f'{first}:{last}'}"
