"""Rules of xtables, read into the model: the matches and targets that are understood, whether a table is legacy or
one of iptables-nft, and the entries of legacy tables (struct ipt_entry, ip6t_entry).

The structures are those of linux/netfilter/xt_*.h and x_tables.h.
"""

import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from ipaddress import ip_address, ip_network, summarize_address_range
from typing import Final

from flannelette.services.core.family import IPV4, Network
from flannelette.services.masq.diagnose.verdict import (
    ECHO,
    ECHO_REPLY,
    IPTABLES,
    LEGACY,
    NOWHERE,
    TCP,
    WORD,
    Bits,
    Condition,
    Effect,
    Flow,
    ForeignChain,
    ForeignRule,
    ForeignTable,
    Given,
    Marking,
    Match,
    NfHook,
    State,
    Test,
    of_connection,
    of_owner,
    tracked_only,
)
from flannelette.services.masq.kernel.legacy_tables import ELEMENT, LAYOUTS, RawChain, RawTable
from flannelette.services.masq.kernel.lookups import Part, has_program, is_member, set_name, type_of
from flannelette.services.masq.kernel.routing import link_of

_STATE, _PROTO, _STATUS, _EXPIRES, _DIRECTION = 0x01, 0x02, 0x40, 0x80, 0x1000  # XT_CONNTRACK_
_UNTRACKED: Final = 0x100  # XT_CONNTRACK_STATE_UNTRACKED
_SAVE, _RESTORE = 1, 2  # XT_CONNMARK_
_ADDRESS_IS_SAID, _PORT_IS_SAID = 1, 2  # NF_NAT_RANGE_MAP_IPS, _PROTO_SPECIFIED
_LOCAL, _UNICAST = 0x04, 0x02  # XT_ADDRTYPE_
_DAY: Final = 86400
_MINIMUM: Final = 40
"""Bytes of the smallest packets of a connection."""

PROTOCOLS: Final = {1: "icmp", 6: "tcp", 17: "udp", 58: "ipv6-icmp"}
LOGS: Final = frozenset(("LOG", "NFLOG", "ULOG"))
_NOTHING: Final = (
    "LOG NFLOG ULOG TCPMSS TCPOPTSTRIP DSCP TOS TTL HL ECN TRACE AUDIT CHECKSUM CLASSIFY SET TEE SECMARK CONNSECMARK "
    "IDLETIMER RATEEST LED"
)
QUEUES: Final = ("NFQUEUE", "QUEUE")
_DIVERTS: Final = "DNAT REDIRECT TPROXY"
TARGETS: Final = {
    "REJECT": Effect.DROP,
    **dict.fromkeys(("MASQUERADE", "SNAT", "NETMAP"), Effect.TRANSLATE),
    **dict.fromkeys(_NOTHING.split(), Effect.NOTHING),
    **dict.fromkeys(("MARK", "CONNMARK", "CT"), Effect.NOTHING),
    **dict.fromkeys(_DIVERTS.split(), Effect.DIVERT),
    "SYNPROXY": Effect.ACCEPT,
    "NOTRACK": Effect.UNTRACK,
}
"""What each target does beside the verdicts; any other target may do anything."""

Asked = Iterator[tuple[Condition, str]]
"""Each condition with its text, as iptables writes it."""
UNKNOWN: Final = Condition(unknown=True)
SHARE: Final = Condition(asks=lambda flow: Match.PART)
"""Condition that holds for a share of the packets."""
_LITTLE: Final = 1 << 16
"""Bytes that the first connections use up."""
_MINUTE: Final = 60
_FEW: Final = 5
STATUS: Final = Condition(asks=lambda flow: Match.NO if flow.states == State.NEW else Match.MAYBE)
"""Condition on a bit of the status of a connection: of a new one none is set yet."""


def effect_of(name: str, revision: int, data: bytes) -> tuple[Effect, Marking | None]:
    """The effect of a target, and its change of a mark."""
    if name == "CT" and len(data) >= 2 and struct.unpack_from("=H", data)[0] & 1:
        return Effect.UNTRACK, None
    if name in QUEUES:
        first, count, flags = struct.unpack_from("=HHH", data.ljust(6, b"\0"))
        return queueing(first, count if revision else 1, is_bypassed=revision >= 2 and bool(flags & 1)), None
    if name == "MARK" and len(data) >= 8 and revision >= 2:
        mark, mask = struct.unpack_from("=II", data)
        return Effect.NOTHING, Marking(kept=~mask & WORD, toggled=Bits(mark))
    if name == "CONNMARK" and len(data) >= 15:
        return Effect.NOTHING, _connection_marking(revision, data)
    return TARGETS.get(name, Effect.UNKNOWN), None


def given_by(name: str, revision: int, data: bytes, version: int) -> Given:
    """What a target gives the packets that it translates, or hands to a program of this host."""
    length = 4 if version == 4 else 16
    try:
        if name == "TPROXY":
            address, (port,) = data[8 : 8 + length], struct.unpack_from(">H", data, 24 if revision else 12)
            return Given(spanned(address, address) if any(address) else (), port)
        # struct nf_nat_range, or nf_nat_ipv4_multi_range_compat
        flags_at, first_at, size, port_at = (0, 4, 16, 36) if revision or version == 6 else (4, 8, 4, 16)
        flags, port = struct.unpack_from("=I", data, flags_at)[0], struct.unpack_from(">H", data, port_at)[0]
        port = port if flags & _PORT_IS_SAID else 0
        if name in ("MASQUERADE", "REDIRECT"):
            return Given((), port, options=flags)
        if name in ("SNAT", "DNAT", "NETMAP") and flags & _ADDRESS_IS_SAID:
            first, last = (data[at : at + length] for at in (first_at, first_at + size))
            options = flags & ~(_ADDRESS_IS_SAID | _PORT_IS_SAID)
            return Given(spanned(first, last), port, is_mapped=name == "NETMAP", options=options)
        return Given(None, port, is_kept=name in ("SNAT", "DNAT"))
    except (struct.error, ValueError, TypeError):  # addresses of two families are none
        return Given()


def spanned(first: bytes, last: bytes) -> tuple[Network, ...]:
    """The networks from an address to another. Raises ValueError."""
    return tuple(summarize_address_range(ip_address(first), ip_address(last)))


def queueing(first: int, count: int, *, is_bypassed: bool) -> Effect:
    """The effect of handing packets to the program that has one of these queues: without any they are dropped."""
    return Effect.DROP if not is_bypassed and has_program(first, count) is False else Effect.ACCEPT


def _connection_marking(revision: int, data: bytes) -> Marking:
    mark, mask, mask_of_packets = struct.unpack_from("=III", data)
    shift, mode = (data[13], data[14]) if revision >= 2 else (0, data[12])
    if shift:
        return Marking(toggled=Bits(0, WORD), is_of_connection=mode != _RESTORE)
    if mode == _RESTORE:
        return Marking(kept=~mask_of_packets & WORD, taken=mask)
    taken, toggled = (mask_of_packets, 0) if mode == _SAVE else (0, mark)
    return Marking(kept=~mask & WORD, taken=taken, toggled=Bits(toggled), is_of_connection=True)


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


def _conntrack(version: int, revision: int, data: bytes) -> Asked:
    flags, inverse = struct.unpack_from("=HH", data, 146)
    states = struct.unpack_from("=H", data, 150)[0] if revision >= 2 else data[150]
    if flags & _STATE:
        negated = bool(inverse & _STATE)
        known = states & 0x0F | (State.UNTRACKED if states & _UNTRACKED else 0)
        text = ",".join(state.name or "" for state in State if state & known)
        text += ",DNAT" if states & 0x80 else ""
        yield Condition(states=known, negated=negated), f"-m conntrack {_not(f'--ctstate {text}', negated)}"
    for flag, text, condition in _connection(version, revision, data):
        if flags & flag:
            negated = bool(inverse & flag)
            yield condition(negated), f"-m conntrack {_not(text, negated)}"
    if flags & _DIRECTION:  # what inverts it is the other direction
        word, wanted = ("REPLY", 1) if inverse & _DIRECTION else ("ORIGINAL", 0)
        yield tracked_only(Condition(test=Test("direction", wanted, wanted))), f"-m conntrack --ctdir {word}"
    if flags & _EXPIRES:
        yield UNKNOWN, "-m conntrack --ctexpire ..."


def _connection(version: int, revision: int, data: bytes) -> Iterator[tuple[int, str, Callable[[bool], Condition]]]:
    """What may be asked of a connection: the flag that asks it, its text, and the condition, or its negation."""
    number = struct.unpack_from("=H", data, 136)[0]
    asked = [(_PROTO, f"--ctproto {PROTOCOLS.get(number, number)}", Condition(protocol=number), False)]
    ends, size = ("orig", "repl"), 4 if version == 4 else 16
    for place in range(4):
        is_source, is_answer, end = place % 2 == 0, place > 1, ends[place // 2]
        option = f"--ct{end}{'src' if is_source else 'dst'}"
        network = network_of(data[32 * place :][:size], data[32 * place + 16 :][:size])
        of_address = Condition(source=network) if is_source else Condition(destination=network)
        asked.append((0x04 << place, f"{option} {network or '...'}", of_address if network else UNKNOWN, is_answer))
        form, places = ("=H", (138, 154)) if revision >= 3 else (">H", (138, 138))
        first, last = (struct.unpack_from(form, data, at + 2 * place)[0] for at in places)
        of_port = Condition(test=Test("source port" if is_source else "port", first, last))
        asked.append((0x100 << place, _span(f"{option}port", first, last), of_port, is_answer))
    for flag, text, condition, is_answer in asked:
        yield flag, text, partial(_asked_of_connection, condition, is_answer)
    yield _STATUS, "--ctstatus ...", lambda negated: tracked_only(replace(STATUS, negated=negated))


def _asked_of_connection(condition: Condition, is_answer: bool, negated: bool) -> Condition:
    return of_connection(replace(condition, negated=negated), is_answer=is_answer)


def network_of(address: bytes, mask: bytes) -> Network | None:
    """The network of an address with its mask; None: the ones of the mask do not stand together."""
    bits = bin(int.from_bytes(mask, "big"))[2:].zfill(8 * len(mask))
    if "01" in bits:
        return None
    return ip_network(f"{ip_address(address)}/{bits.count('1')}", strict=False)


def _state(_revision: int, data: bytes) -> Asked:
    states = struct.unpack_from("=I", data)[0]
    yield (
        Condition(states=states),
        f"-m state --state {','.join(state.name or '' for state in State if state & states)}",
    )


def _devgroup(_revision: int, data: bytes) -> Asked:
    flags, source, source_mask, to, to_mask = struct.unpack_from("=5I", data)
    for place, option, number, mask in ((0, "--src-group", source, source_mask), (2, "--dst-group", to, to_mask)):
        if flags >> place & 1:
            negated = bool(flags >> place & 2)
            condition = of_link("group", number, mask, is_incoming=place == 0, negated=negated)
            yield condition, f"-m devgroup {_not(f'{option} {number:#x}', negated)}"


def of_link(field: str, wanted: int | str, mask: int = -1, *, is_incoming: bool, negated: bool = False) -> Condition:
    """Condition on the interface that packets come by, or leave by. Where they have none, or it has no such field,
    it does not hold, nor does its negation.
    """

    def asks(flow: Flow) -> Match:
        name = flow.incoming if is_incoming else flow.outgoing
        link = link_of(name) if name not in ("", NOWHERE) else None
        if link is None:
            return Match.NO if name == NOWHERE else Match.MAYBE
        found = getattr(link, field)
        is_it = found == wanted if isinstance(wanted, str) else not (found ^ wanted) & mask
        return Match.YES if found != "" and is_it is not negated else Match.NO

    return Condition(asks=asks)


def _mark(_revision: int, data: bytes) -> Asked:
    mark, mask, negated = struct.unpack_from("=II?", data)
    yield (
        Condition(test=Test("mark", mark, mark, mask), negated=negated),
        f"-m mark {_not(f'--mark {mark:#x}/{mask:#x}', negated)}",
    )


def _connmark(_revision: int, data: bytes) -> Asked:
    mark, mask, negated = struct.unpack_from("=II?", data)
    asked = Condition(test=Test("connection mark", mark, mark, mask), negated=negated)
    yield tracked_only(asked), f"-m connmark {_not(f'--mark {mark:#x}/{mask:#x}', negated)}"


def _dscp(_revision: int, data: bytes) -> Asked:
    number, negated = data[0], bool(data[1])
    asked = Condition(test=Test("tos", number << 2, number << 2, 0xFC), negated=negated)
    yield asked, f"-m dscp {_not(f'--dscp {number:#x}', negated)}"


def _tos(revision: int, data: bytes) -> Asked:
    mask, number, negated = (data[0], data[1], bool(data[2])) if revision else (0xFF, data[0], bool(data[1]))
    asked = Condition(test=Test("tos", number, number, mask), negated=negated)
    yield asked, f"-m tos {_not(f'--tos {number:#x}/{mask:#x}', negated)}"


def _physdev(_revision: int, data: bytes) -> Asked:
    """Condition of `physdev`: the ports of a bridge that packets cross, or come by before they are routed."""
    inverse, asked = data[64], data[65]
    for flag, option, at, only_bridged in (
        (0x01, "--physdev-in", 0, False),
        (0x02, "--physdev-out", 32, True),
        (0x04, "--physdev-is-bridged", None, True),
        (0x08, "--physdev-is-in", None, False),
        (0x10, "--physdev-is-out", None, True),
    ):
        if not asked & flag:
            continue
        name, mask = ("", b"") if at is None else (_text(data[at : at + 16]), data[at + 16 : at + 32])
        is_prefix = at is not None and not mask[len(name)]
        negated = bool(inverse & flag)
        condition = Condition(asks=partial(_crosses, name, is_prefix, only_bridged), negated=negated)
        yield condition, f"-m physdev {_not(f'{option} {name}'.strip(), negated)}"


def _crosses(name: str, is_prefix: bool, only_bridged: bool, flow: Flow) -> Match:
    """Whether a packet comes by, or leaves by, a port with the name; any, if it is empty."""
    if only_bridged and flow.name != "local":
        return Match.NO
    is_one = [port.startswith(name) if is_prefix or not name else port == name for port in flow.ports]
    return (Match.YES if all(is_one) else Match.MAYBE) if any(is_one) else Match.NO


def _text(data: bytes) -> str:
    return data.partition(b"\0")[0].decode(errors="replace")


def _helper(_revision: int, data: bytes) -> Asked:
    """Condition of the match `helper`: protocols with further connections, such as FTP; no packet here is of one."""
    negated = bool(struct.unpack_from("=i", data)[0])
    yield tracked_only(Condition(always=negated)), "-m helper"


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
    yield of_owner(has_none=is_negation), "-m owner"


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
    kind = type_of(name)
    ends = ["src" if flags >> place & 1 else "dst" for place in range(1, dimension + 1)]

    def asks(flow: Flow) -> Match:
        return _is_in_set(flow, name, kind, ends) if revision else Match.MAYBE

    yield (
        Condition(asks=asks, negated=negated, of_set=True),
        f"-m set {_not(f'--match-set {name} {chr(44).join(ends)}', negated)}",
    )


def _is_in_set(flow: Flow, name: str, kind: str, ends: list[str]) -> Match:
    """The kernel is asked about one packet; a set whose type has a part that is not known of it may have it."""
    parts = list[Part]()
    for place, word in enumerate(kind.partition(":")[2].split(",")):
        part = _part_of(flow, word, is_source=place < len(ends) and ends[place] == "src")
        if part is None:
            return Match.MAYBE
        parts.append(part)
    if kind == "bitmap:port" and flow.protocol in ECHO:
        return Match.NO  # it has no ports
    protocol = flow.protocol if kind.startswith("hash:") else 0
    found = is_member(name, parts, flow.source.version, protocol)
    return Match.MAYBE if found is None else Match.YES if found else Match.NO


def _part_of(flow: Flow, word: str, *, is_source: bool) -> Part | None:
    """What a packet has where an element of a set has this part; None: unknown."""
    end = flow.ends[not is_source]
    match word:
        case "ip" | "net" if end.prefixlen == end.max_prefixlen:
            return end.network_address
        case "port" if flow.protocol in ECHO:
            kind = ECHO_REPLY if flow.is_answer else ECHO
            return kind[flow.protocol] << 8
        case "port":
            return (flow.source_port if is_source else flow.port) or None
        case "iface":
            return (flow.incoming if is_source else flow.outgoing) or None
        case "mac" if is_source:
            return flow.mac or None
    return None


def _ttl(_revision: int, data: bytes) -> Asked:
    """Condition of the match `ttl`: equal, not equal, less or greater."""
    mode, number = data[0], data[1]
    first, last = {2: (0, number - 1), 3: (number + 1, 255)}.get(mode, (number, number))
    condition = Condition(test=Test("ttl", first, last), negated=mode == 1)
    yield condition, f"-m ttl {('--ttl-eq', '! --ttl-eq', '--ttl-lt', '--ttl-gt')[mode]} {number}"


def _pkttype(_revision: int, data: bytes) -> Asked:
    kind, inverse = struct.unpack_from("=ii", data)
    yield Condition(test=Test("kind", kind, kind), negated=bool(inverse)), "-m pkttype"


def _segment_size(version: int, _revision: int, data: bytes) -> Asked:
    """Condition of the match `tcpmss`: a SYN has the MSS that fits the MTU of the interface that it comes by."""
    first, last, negated = struct.unpack_from("=HHB", data)

    def asks(flow: Flow) -> Match:
        is_known = flow.protocol == TCP and flow.states == State.NEW and flow.incoming not in ("", NOWHERE)
        link = link_of(flow.incoming) if is_known else None
        if link is None:
            return Match.MAYBE
        return Match.YES if first <= link.mtu - (40 if version == 4 else 60) <= last else Match.NO

    yield Condition(asks=asks, negated=bool(negated)), f"-m tcpmss {_not(_span('--mss', first, last), bool(negated))}"


def _connection_limit(revision: int, data: bytes) -> Asked:
    """Condition of the match `connlimit`."""
    number, flags = struct.unpack_from("=II", data, 16)
    word = "--connlimit-upto" if flags & 1 else "--connlimit-above"
    yield of_count(number, is_above=not flags & 1), f"-m connlimit {word} {number}"


def of_count(number: int, *, is_above: bool) -> Condition:
    """Condition on the number of connections, of which there is one at least: that of the packet."""
    return UNKNOWN if number else Condition(always=is_above)


def _connection_bytes(_revision: int, data: bytes) -> Asked:
    """Condition of the match `connbytes`: what comes after so little in each connection is a share of the packets."""
    first, last, what = struct.unpack_from("=QQB", data)
    size = first * _MINIMUM if what == 0 else first
    is_reached = what in (0, 1) and size <= _LITTLE and last > 1 << 60
    yield SHARE if is_reached else UNKNOWN, f"-m connbytes --connbytes {first}:"


def _quota(_revision: int, data: bytes) -> Asked:
    """Condition of the match `quota`."""
    flags, number = struct.unpack_from("=IxxxxQ", data)
    negated = bool(flags & 1)
    yield of_quota(number, is_over=negated), f"-m quota {_not(f'--quota {number}', negated)}"


def of_quota(number: int, consumed: int = 0, *, is_over: bool) -> Condition:
    """Condition that so many bytes are left, or no more."""
    return Condition(always=is_over) if number <= max(_LITTLE, consumed) else UNKNOWN


def _limit(_revision: int, data: bytes) -> Asked:
    """Condition of the match `limit`."""
    period, burst = struct.unpack_from("=II", data)
    yield of_rate(period / 10_000, burst), "-m limit"


def of_rate(seconds: float, burst: int) -> Condition:
    """Condition of a limit, to a packet in so many seconds: a share of packets, where no connection keeps to it."""
    return SHARE if seconds > _MINUTE and burst <= _FEW else UNKNOWN


def _statistic(_revision: int, data: bytes) -> Asked:
    """Condition of the match `statistic`: a share of the packets, by chance or by turns."""
    mode, flags, number = struct.unpack_from("=HHI", data)
    share = number / 0x8000_0000 if mode == 0 else 1 / (number + 1)
    said = f"--mode random --probability {share:.2f}" if mode == 0 else f"--mode nth --every {number + 1}"
    match = Match.NO if not share else Match.YES if share >= 1 else Match.PART
    negated = bool(flags & 1)
    yield Condition(asks=lambda flow: match, negated=negated), f"-m statistic {_not(said, negated)}"


def _arp(_revision: int, data: bytes) -> Asked:
    """Conditions of ebtables' match `arp`."""
    asked, inverse = data[48], data[49]
    hardware, protocol, operation = struct.unpack_from(">HHH", data)
    source, destination = network_of(data[8:12], data[12:16]), network_of(data[16:20], data[20:24])
    sender, mask = (int.from_bytes(data[place : place + 6], "big") for place in (24, 30))
    for flag, text, condition in (
        (0x01, f"--arp-opcode {operation}", Condition(test=Test("arp operation", operation, operation))),
        (0x02, f"--arp-htype {hardware}", Condition(test=Test("arp htype", hardware, hardware))),
        (0x04, f"--arp-ptype {protocol:#x}", Condition(test=Test("arp ptype", protocol, protocol))),
        (0x08, f"--arp-ip-src {source}", Condition(source=source) if source else UNKNOWN),
        (0x10, f"--arp-ip-dst {destination}", Condition(destination=destination) if destination else UNKNOWN),
        (0x20, "--arp-mac-src ...", Condition(test=Test("arp mac", sender, sender, mask))),
        (0x40, "--arp-mac-dst ...", UNKNOWN),
        (0x80, "--arp-gratuitous", Condition(always=False)),
    ):
        if asked & flag:
            negated = bool(inverse & flag)
            yield replace(condition, negated=negated), _not(text, negated)


def _ip(version: int, _revision: int, data: bytes) -> Asked:
    """Conditions of ebtables' matches `ip` and `ip6`."""
    size = 4 if version == 4 else 16
    ends = [data[place * size :][:size] for place in range(4)]
    kind, protocol, asked, inverse = data[4 * size :][:4]
    spans = struct.unpack_from("=4H", data, 4 * size + 4)
    source, destination = network_of(ends[0], ends[2]), network_of(ends[1], ends[3])
    for flag, text, condition in (
        (0x01, f"source {source}", Condition(source=source) if source else UNKNOWN),
        (0x02, f"destination {destination}", Condition(destination=destination) if destination else UNKNOWN),
        (0x04, f"tos {kind:#x}", Condition(test=Test("tos", kind, kind)) if version == 4 else UNKNOWN),
        (0x08, f"protocol {PROTOCOLS.get(protocol, protocol)}", Condition(protocol=protocol)),
        (0x10, f"source-port {spans[0]}:{spans[1]}", Condition(test=Test("source port", spans[0], spans[1]))),
        (0x20, f"destination-port {spans[2]}:{spans[3]}", Condition(ports=(spans[2], spans[3]))),
        (0x40, "icmp-type ...", UNKNOWN),
        (0x80, "igmp-type ...", UNKNOWN),
    ):
        if asked & flag:
            negated = bool(inverse & flag)
            yield replace(condition, negated=negated), _not(f"--ip{'6' * (version == 6)}-{text}", negated)


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


def _routing_header(_revision: int, _data: bytes) -> Asked:
    """Condition of the match `rt`, nor does its negation hold: no packet here has a routing header."""
    yield Condition(always=False), "-m rt"


def _comment(_revision: int, _data: bytes) -> Asked:
    yield from ()


_MATCHES_OF_VERSION: Final[dict[str, Callable[[int, int, bytes], Asked]]] = {
    "addrtype": _addrtype, "iprange": _iprange, "conntrack": _conntrack, "tcpmss": _segment_size,
}  # fmt: skip
_MATCHES: Final[dict[str, Callable[[int, bytes], Asked]]] = {
    "tcp": _tcp, "udp": _udp, "udplite": _udp, "multiport": _multiport, "state": _state,
    "connmark": _connmark, "devgroup": _devgroup, "dscp": _dscp, "tos": _tos, "helper": _helper, "physdev": _physdev,
    "mark": _mark, "mac": _mac, "owner": _owner, "length": _length,
    "icmp": _icmp, "icmp6": _icmp, "time": _time, "set": _set, "pkttype": _pkttype, "policy": _policy,
    "arp": _arp, "ip": partial(_ip, 4), "ip6": partial(_ip, 6),
    "statistic": _statistic, "rpfilter": _rpfilter, "ttl": _ttl, "hl": _ttl, "comment": _comment,
    "rt": _routing_header, "connlimit": _connection_limit, "connbytes": _connection_bytes, "quota": _quota,
    "limit": _limit,
}  # fmt: skip


def _not(text: str, negated: bool) -> str:
    return f"! {text}" if negated else text


def _span(option: str, first: int, last: int) -> str:
    return f"{option} {first if first == last else f'{first}:{last}'}"


_MOST_ENTRIES: Final = 1000
"""Entries of a table whose rules are read: a thousand take about 10 ms."""
_NOT_IN, _NOT_OUT, _NOT_SOURCE, _NOT_DESTINATION, _NOT_PROTOCOL = 0x01, 0x02, 0x08, 0x10, 0x40
_NOT_FRAGMENT: Final = 0x20  # IPT_INV_FRAG
_OTHER_INVERSE: Final = 0x04  # IPT_INV_TOS
_NAME: Final = slice(2, 31)
_ACCEPT, _DROP, _RETURN = -2, -1, -5


def read_legacy(raw: RawTable) -> ForeignTable:
    """The table. Of one with more than a thousand entries only the policies are read."""
    version, name, is_whole = raw.version, raw.name, raw.number <= _MOST_ENTRIES
    hooks = {NfHook(number).name: NfHook(number) for number, start in enumerate(raw.starts) if start is not None}
    chains = raw.chains() if is_whole else {hook: RawChain(0, []) for hook in hooks}
    names = {chain.start: each for each, chain in chains.items()}
    found = dict[str, ForeignChain]()
    for each in sorted(chains):
        entries = (raw.entries[slice(*place)] for place in chains[each].rules)
        rules = (replace(rule_of(version, each, one, names), number=place) for place, one in enumerate(entries, 1))
        hook = hooks.get(each)
        priority = IPTABLES.get(name, {}).get(hook, 0) if hook is not None else 0
        found[each] = ForeignChain(each, tuple(rules), hook, priority, _drops(raw, hook), translates=name == "nat")
    is_volatile = any(rule.target in QUEUES for chain in found.values() for rule in chain.rules)
    return ForeignTable(LEGACY, version, name, found, is_whole, is_volatile=is_volatile)


def _drops(raw: RawTable, hook: NfHook | None) -> bool:
    """Whether the policy of a hook's chain is another than to accept."""
    if hook is None:
        return False
    policy = raw.policies[hook]
    entry = raw.entries[policy : policy + LAYOUTS[raw.version].elements]
    return _verdict(raw.entries, policy + target_of(raw.version, entry)) != _ACCEPT


def rule_of(version: int, chain: str, entry: bytes, names: Mapping[int, str]) -> ForeignRule:
    """The rule of one entry of a chain. `names` are those of chains, by where they start."""
    target = target_of(version, entry)
    asked = list(_conditions(version, entry))
    name, is_goto = _text(entry[target:][_NAME]), bool(entry[LAYOUTS[version].flags] & LAYOUTS[version].goto)
    kind, marking, given, destination = Effect.UNKNOWN, None, Given(), name
    if not name:
        verdict = _verdict(entry, target)
        kind = {_ACCEPT: Effect.ACCEPT, _DROP: Effect.DROP, _RETURN: Effect.RETURN}.get(verdict, Effect.NOTHING)
        destination = kind.name if verdict < 0 else names.get(verdict, "")
        if destination and verdict >= 0:
            kind = Effect.GOTO if is_goto else Effect.JUMP
    elif len(entry) >= target + ELEMENT:
        revision, data = entry[target + ELEMENT - 1], entry[target + ELEMENT :]
        kind, marking = effect_of(name, revision, data)
        given = given_by(name, revision, data, version)
    words = [f"-A {chain}", *(text for _, text in asked if text)]
    words += [f"{'-g' if is_goto else '-j'} {destination}"] if destination else []
    conditions = tuple(condition for condition, _ in asked)
    return ForeignRule(
        " ".join(words),
        conditions,
        kind,
        destination,
        chain,
        marking=marking,
        given=given,
        only_logs=name in LOGS,
    )


def matches_of(version: int, entry: bytes) -> Iterator[tuple[str, int, bytes]]:
    """Name, revision and data of each match of an entry."""
    place, end = LAYOUTS[version].elements, min(target_of(version, entry), len(entry))
    while place + ELEMENT <= end:
        size = max(_number(entry, place, 2), ELEMENT)
        yield _text(entry[place:][_NAME]), entry[place + ELEMENT - 1], entry[place + ELEMENT : place + size]
        place += size


def _conditions(version: int, entry: bytes) -> Iterator[tuple[Condition, str]]:
    """Each with its text; empty: none of its own."""
    layout = LAYOUTS[version]
    inverse, size = entry[layout.inverse], layout.address
    for place, option, flag in ((0, "-s", _NOT_SOURCE), (1, "-d", _NOT_DESTINATION)):
        negated = bool(inverse & flag)
        network = network_of(entry[place * size :][:size], entry[(place + 2) * size :][:size])
        if network is None:
            yield Condition(unknown=True), f"{option} ..."
        elif network.prefixlen or negated:
            source, destination = (network, None) if option == "-s" else (None, network)
            text = f"{'! ' if negated else ''}{option} {network}"
            yield Condition(source=source, destination=destination, negated=negated), text
    for place, option, flag in ((0, "-i", _NOT_IN), (1, "-o", _NOT_OUT)):
        raw, mask = (entry[4 * size + 16 * (place + shift) :][:16] for shift in (0, 2))
        if any(mask):
            is_whole = any(mask[len(raw.partition(b"\0")[0]) :])  # with the zero after it
            name = _text(raw) if is_whole else f"{_text(raw).removesuffix('+')}+"
            negated = bool(inverse & flag)
            incoming, outgoing = (name, None) if option == "-i" else (None, name)
            text = f"{'! ' if negated else ''}{option} {name}"
            yield Condition(incoming=incoming, outgoing=outgoing, negated=negated), text
    protocol = _number(entry, layout.protocol, 2)
    if protocol:
        negated = bool(inverse & _NOT_PROTOCOL)
        text = f"{'! ' if negated else ''}-p {PROTOCOLS.get(protocol, protocol)}"
        yield Condition(protocol=protocol, negated=negated), text
    if version == IPV4.version and entry[layout.flags] & layout.other_flags:
        negated = bool(inverse & _NOT_FRAGMENT)
        yield Condition(always=negated), f"{'! ' if negated else ''}-f"
    elif inverse & _OTHER_INVERSE or entry[layout.flags] & layout.other_flags:
        yield Condition(unknown=True), ""
    for name, revision, data in matches_of(version, entry):
        yield from conditions_of(name, revision, data, version)


def target_of(version: int, entry: bytes) -> int:
    """Offset of the target in an entry."""
    return _number(entry, LAYOUTS[version].offsets, 2)


def _verdict(entries: bytes, target: int) -> int:
    return _number(entries, target + ELEMENT, 4, signed=True)


def _number(entries: bytes, place: int, size: int, *, signed: bool = False) -> int:
    """Reads a number in the byte order of this machine; 0 if the entries end before it."""
    return int.from_bytes(entries[place : place + size], sys.byteorder, signed=signed)
