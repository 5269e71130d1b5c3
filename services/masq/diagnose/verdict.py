"""What the rules of other programs do with a packet, as far as that is certain. Pure.

Each condition of a rule holds for all packets of a flow, for none, or for some. A chain drops a packet for certain
when no rule that may hold accepts it before; a rule that may hold and drops makes a drop that is not certain.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum, IntEnum, IntFlag
from typing import Final

from flannelette.services.core.family import Network
from flannelette.services.core.frozen import frozen
from flannelette.services.core.network import contains


class NfHook(IntEnum):
    """Where the kernel calls a base chain: enum nf_inet_hooks, and those of devices, bridges and ARP."""

    PREROUTING = 0
    INPUT = 1
    FORWARD = 2
    OUTPUT = 3
    POSTROUTING = 4
    INGRESS = 5
    """Hook at a device, before all other hooks."""
    EGRESS = 6
    """Hook at a device, after all other hooks."""
    BRIDGE_PREROUTING = 10
    BRIDGE_INPUT = 11
    BRIDGE_FORWARD = 12
    BRIDGE_OUTPUT = 13
    BRIDGE_POSTROUTING = 14
    ARP_INPUT = 20
    ARP_OUTPUT = 21


class State(IntFlag):
    """What connection tracking knows of a packet: NF_CT_STATE_BIT."""

    INVALID = 1
    ESTABLISHED = 2
    RELATED = 4
    NEW = 8
    UNTRACKED = 64


NOWHERE: Final = "\0"
"""The name in place of an interface that packets do not have at a hook; no rule has it."""
_REVERSED, _MASQUERADED = -100, 100
"""NF_IP_PRI_NAT_DST and _SRC: where answers get the pod's address back, and packets lose it."""
_CONNTRACK: Final = -200
"""NF_IP_PRI_CONNTRACK: chains of a smaller priority see packets before connection tracking does."""
_WITHOUT_IN: Final = frozenset(
    (NfHook.OUTPUT, NfHook.EGRESS, NfHook.BRIDGE_OUTPUT, NfHook.BRIDGE_POSTROUTING, NfHook.ARP_OUTPUT)
)
_WITHOUT_OUT: Final = frozenset(
    (
        NfHook.PREROUTING,
        NfHook.INPUT,
        NfHook.INGRESS,
        NfHook.BRIDGE_PREROUTING,
        NfHook.BRIDGE_INPUT,
        NfHook.ARP_INPUT,
    )
)
"""Hooks at which packets have no interface that they come by, or leave by."""
_AFTER_ROUTING: Final = frozenset(
    (NfHook.FORWARD, NfHook.POSTROUTING, NfHook.EGRESS, NfHook.BRIDGE_OUTPUT, NfHook.BRIDGE_POSTROUTING)
)
LEGACY: Final = "iptables-legacy"
PROGRAMS: Final = {4: "iptables-legacy", 6: "ip6tables-legacy"}
NFT: Final = "nft"
_FILTER: Final = (NfHook.INPUT, NfHook.FORWARD, NfHook.OUTPUT)
_OF_IP: Final = (NfHook.PREROUTING, *_FILTER, NfHook.POSTROUTING)
IPTABLES: Final[Mapping[str, Mapping[NfHook, int]]] = {
    "filter": dict.fromkeys(_FILTER, 0),
    "nat": {
        NfHook.PREROUTING: -100,
        NfHook.INPUT: 100,
        NfHook.OUTPUT: -100,
        NfHook.POSTROUTING: 100,
    },
    "mangle": dict.fromkeys(_OF_IP, -150),
    "raw": {NfHook.PREROUTING: -300, NfHook.OUTPUT: -300},
    "security": dict.fromkeys(_FILTER, 50),
}
"""The base chains of iptables, named like their hooks, with their priorities, by table."""
ARP: Final = 0x0806
"""ETH_P_ARP; where a header is read, it stands in place of an IP version."""
WORDS: Final = {0: "inet", 4: "ip", 6: "ip6", ARP: "arp"}
_TYPES: Final = {4: 0x0800, 6: 0x86DD}
_OF_FRAMES: Final = frozenset(
    (
        "ethertype", "mac", "mark", "kind", "length", "time", "hour", "day", "arp operation",
        "arp htype", "arp ptype", "arp hlen", "arp plen", "arp mac",
    )
)  # fmt: skip
"""Fields that packets of ARP have."""


class Match(Enum):
    """Whether a condition holds."""

    YES = "yes"
    NO = "no"
    MAYBE = "maybe"
    PART = "part"
    """The condition holds for a share of the packets of each kind, by chance or by turns."""


class Effect(Enum):
    """What a rule does with a packet that matches."""

    ACCEPT = "accept"
    DROP = "drop"
    """The packet is dropped or rejected."""
    RETURN = "return"
    JUMP = "jump"
    GOTO = "goto"
    NOTHING = "continue"
    """The rule counts, marks or logs, and the packet goes on."""
    TRANSLATE = "snat"
    """The rule gives the packet another source address, in a chain for that."""
    DIVERT = "dnat"
    """The rule gives the packet another destination, or hands it to a program of this host."""
    UNTRACK = "notrack"
    """Connection tracking leaves the packet alone."""
    UNKNOWN = "unknown"
    """A target that is not known here: it may accept."""


@frozen
class Bits:
    """A number of which some bits are not known."""

    value: int = 0
    unknown: int = 0

    def within(self, mask: int) -> "Bits":
        """The same, with all other bits zero."""
        return Bits(self.value & mask, self.unknown & mask)


WORD: Final = 0xFFFF_FFFF
"""All bits of a mark."""
UNKNOWN_MARK: Final = Bits(0, WORD)


@frozen
class Marking:
    """A change of the mark of a packet, or of its connection: (mark & kept) ^ (the other mark & taken) ^ toggled."""

    kept: int = 0
    taken: int = 0
    toggled: Bits = Bits()
    is_of_connection: bool = False
    """The connection's mark changes, and `taken` are bits of the packet's; else the reverse."""

    def changed(self, own: Bits, other: Bits) -> Bits:
        """The mark after the change."""
        value, unknown = self.toggled.value, self.toggled.unknown
        for part in (own.within(self.kept), other.within(self.taken)):
            value, unknown = value ^ part.value, unknown | part.unknown
        return Bits(value & ~unknown, unknown)


def is_before_tracking(hook: NfHook | None, priority: int) -> bool:
    """Whether a base chain there sees packets before connection tracking does, so that they have no state yet."""
    return hook is NfHook.INGRESS or (hook in (NfHook.PREROUTING, NfHook.OUTPUT) and priority < _CONNTRACK)


def is_masqueraded_at(hook: NfHook | None, priority: int, *, answers: bool) -> bool:
    """Whether a base chain there sees masqueraded packets, or answers to these, with the host's address."""
    if answers:
        return hook is NfHook.INGRESS or (hook is NfHook.PREROUTING and priority < _REVERSED)
    return hook is NfHook.EGRESS or (hook is NfHook.POSTROUTING and priority > _MASQUERADED)


@frozen
class Flow:
    """Packets of one kind."""

    source: Network
    """The network of the packets' source addresses."""
    destination: Network
    incoming: str = ""
    """Interface they come by; empty: unknown, or none."""
    outgoing: str = ""
    protocol: int = 0
    """Number of the IP protocol; 0: unknown."""
    port: int = 0
    """The destination port; 0: unknown."""
    elsewhere: tuple[str, ...] = ("lo",)
    """Interfaces that they neither come nor leave by, where these are unknown."""
    source_port: int = 0
    """Source port; 0: unknown."""
    length: int = 0
    """Length of the IP packet; 0: unknown."""
    states: State = State.NEW
    """What connection tracking may know of them. Packets that begin a connection are NEW, and not translated."""
    mark: Bits = Bits()
    connection_mark: Bits = Bits()
    mac: bytes = b""
    """MAC of the sender, as the packets come in; empty: unknown."""
    is_for_us: bool | None = None
    """The destination is an address of this host; None: unknown."""
    is_ours: bool = False
    """Whether this host sends the packets."""
    is_of_process: bool = False
    """Whether a process of this host sends or gets the packets; else they have no socket here, and no owner."""
    is_from_peers: bool = False
    """Pods of other nodes send them."""
    only_by: str = ""
    """The interface by which all of them come: by any other, the source is forged; those of this host leave by it.
    Empty: there is none such.
    """
    ports: tuple[str, ...] = ()
    """Ports of a bridge that they come by, where its packets meet the rules of IP (br_netfilter)."""
    is_answer: bool = False
    """Whether the packets belong to connections that exist."""
    clock: int = 0
    """Present time in Unix seconds; 0: unknown."""
    way: tuple[NfHook, ...] = (NfHook.PREROUTING, NfHook.FORWARD, NfHook.POSTROUTING)
    """The hooks that they pass, in this order."""
    masqueraded_as: Network | None = None
    """The address of this host that masquerading puts in place of the pods': on packets that leave, and on answers
    as they come. None: they keep theirs.
    """
    is_masqueraded: bool = False
    """Whether the packets have that address where they are seen."""
    is_routed: bool = False
    """Whether this host has routed them where they are seen, and so made their TTL less."""
    operation: int = 0
    """Operation of ARP or IPv6's neighbour discovery: 1 a request or a solicitation, 2 a reply or an advertisement;
    0: the packets are of neither.
    """
    is_perhaps: bool = False
    """The flow is a guess: nobody knows whether there are such packets."""
    known: tuple[tuple[Network, bytes], ...] = ()
    """Addresses and MACs of the pods, of the node or of the router that is the other end; none: unknown."""
    name: str = ""
    """`neighbours` (by which this host and its pods find each other), `neighbours-local` (pods each other),
    `neighbours-nodes` (this host and nodes or routers), `pods` (of pods, beyond the network), `local` (between pods
    of the node), `host` (of this host to pods, and their answers), `port` (of a pod, on the bridge), `ping` (to or
    from this host itself) or `tunnel`.
    """

    def at(self, hook: NfHook | None, priority: int) -> "Flow":
        """The packets as a base chain there sees them."""
        incoming = NOWHERE if hook in _WITHOUT_IN or (self.is_ours and hook is NfHook.POSTROUTING) else self.incoming
        outgoing = NOWHERE if hook in _WITHOUT_OUT else self.outgoing
        early = self.states if self.states == State.UNTRACKED else State.INVALID | self.states & State.UNTRACKED
        early = State.INVALID if self.operation else early
        states = early if is_before_tracking(hook, priority) else self.states
        is_masqueraded = self.masqueraded_as is not None and is_masqueraded_at(hook, priority, answers=self.is_answer)
        is_routed = hook in _AFTER_ROUTING and not self.is_ours and self.name != "local"
        return replace(
            self,
            incoming=incoming,
            outgoing=outgoing,
            states=states,
            is_masqueraded=is_masqueraded,
            is_routed=is_routed,
        )

    @property
    def is_arp(self) -> bool:
        """Whether they are no packets of IP."""
        return self.operation > 0 and self.source.version == 4

    @property
    def is_multicast(self) -> bool:
        """Whether they go to a group."""
        return self.operation == 1 and self.source.version == 6

    @property
    def ends(self) -> tuple[Network, Network]:
        """Source and destination as they are written in the packets where they are seen."""
        if self.masqueraded_as is None or not self.is_masqueraded:
            return self.source, self.destination
        return (self.source, self.masqueraded_as) if self.is_answer else (self.masqueraded_as, self.destination)

    @property
    def may_go_both_ways(self) -> bool:
        """Whether some of the packets may be of the end that began the connection, and others of the other end."""
        return self.states not in (State.NEW, State.ESTABLISHED)

    @property
    def reversed(self) -> "Flow":
        """Packets between the same ends the other way."""
        return replace(
            self,
            source=self.destination,
            destination=self.source,
            source_port=self.port,
            port=self.source_port,
            is_masqueraded=False,
        )

    def numbers(self, field: str) -> tuple[Bits, ...]:
        """What may stand in a field of these packets: these, and all between; none: unknown."""
        if field == "ttl":
            # Linux begins with 64, and a network of nodes has few routers; neighbours are asked with 255 (RFC 4861)
            return (Bits(255),) if self.operation else (Bits(56), Bits(64 - self.is_routed))
        found = self.number(field)
        return (found,) if found else ()

    def number(self, field: str) -> Bits | None:
        """The number in a field of these packets; None: unknown."""
        match field:
            case "ethertype":
                return Bits(ARP if self.is_arp else _TYPES[self.source.version])
            case "arp operation" if self.is_arp:
                return Bits(self.operation)
            case "kind":  # only who asks for a neighbour asks many, and only who gets it is told so
                is_asked = self.operation == 1 and self.incoming != NOWHERE
                return Bits(0 if not is_asked else _MULTICAST if self.is_multicast else _BROADCAST)
            case "arp mac" if self.is_arp:
                return Bits(int.from_bytes(self.mac, "big")) if self.mac else None
            case _ if self.is_arp and field in _OF_ETHERNET:
                return Bits(_OF_ETHERNET[field])
            case "protocol":
                return Bits(self.protocol) if self.protocol else None
            case "port":
                return Bits(self.port) if self.port else None
            case "source port":
                return Bits(self.source_port) if self.source_port else None
            case "length":
                return Bits(self.length) if self.length else None
            case "udp length" if self.length and self.protocol == _UDP:
                return Bits(self.length - (20 if self.source.version == 4 else 40))
            case "mark":
                return self.mark
            case "connection mark":
                return self.connection_mark
            case "direction":
                return None if self.may_go_both_ways else Bits(int(self.is_answer))
            case "version":
                return Bits(0x45 if self.source.version == 4 else 0x60)
            case "tos":
                return Bits()  # no program has asked for a class; VXLAN's own datagrams have none either
            case "traffic class":
                return Bits(0, 0x0F)  # its lower half is of the flow label
            case "hour" if self.clock:
                return Bits(self.clock % _DAY)
            case "day" if self.clock:
                return Bits((self.clock // _DAY + 4) % 7)  # 1970 began with a Thursday; Sunday is 0
            case "time" if self.clock:
                return Bits(self.clock * 1_000_000_000)
            case "mac":
                return Bits(int.from_bytes(self.mac, "big")) if self.mac else None
            case "fragment" if self.protocol == TCP:
                return Bits(_WHOLE)
            case "fragment" if self.protocol in ECHO and self.is_answer:
                return Bits()  # the kernel's own answers may be divided on their way
            case "fragment":
                return Bits(0, _WHOLE)  # of no datagram that was divided
            case "tcp flags" if self.protocol == TCP:
                is_first = bool(self.states & State.NEW)
                return Bits(0x10, 0x0A if self.is_answer else 0x08) if not is_first else Bits(0x02)  # SYN, PSH
            case "icmp type" if self.operation:
                return Bits(ND[self.operation])
            case "icmp type" if self.protocol in ECHO:
                return Bits(ECHO_REPLY[self.protocol] if self.is_answer else ECHO[self.protocol])
            case "icmp code" if self.protocol in ECHO:
                return Bits(0)
            case "icmp type" if self.protocol:
                return Bits(-1)
            case _:
                return None


_OF_ETHERNET: Final = {"arp htype": 1, "arp ptype": 0x0800, "arp hlen": 6, "arp plen": 4}
_DAY: Final = 86400
_WHOLE: Final = 0x4000
"""The bit "don't fragment"."""
TCP: Final = 6
_UDP: Final = 17
ECHO: Final = {1: 8, 58: 128}
"""The type of a ping, by the protocol."""
ECHO_REPLY: Final = {1: 0, 58: 129}
ND: Final = {1: 135, 2: 136}
"""The type of a packet of IPv6's neighbour discovery, by the operation."""
_BROADCAST, _MULTICAST = 1, 2  # PACKET_


@frozen
class Test:
    """A comparison of a field with a number."""

    field: str
    first: int
    last: int
    mask: int = -1
    """Bits of the number that count."""

    def holds(self, flow: Flow) -> Match:
        """See Condition."""
        numbers = flow.numbers(self.field)
        each = {self._holds(found) for found in numbers}
        is_between = len(numbers) > 1 and self.first <= numbers[-1].value and self.last >= numbers[0].value
        return Match.MAYBE if len(each) != 1 or (Match.NO in each and is_between) else each.pop()

    def _holds(self, found: Bits) -> Match:
        if self.first == self.last and (found.value ^ self.first) & self.mask & ~found.unknown:
            return Match.NO
        if found.unknown & self.mask:
            return Match.MAYBE
        return Match.YES if self.first <= found.value & self.mask <= self.last else Match.NO


@frozen
class Condition:
    """What a rule asks for; None: nothing."""

    source: Network | None = None
    destination: Network | None = None
    incoming: str | None = None
    """The name of an interface; with `+` at its end a prefix."""
    outgoing: str | None = None
    protocol: int | None = None
    ports: tuple[int, int] | None = None
    """The ports of the destination, first and last."""
    states: int | None = None
    """One of these states of connection tracking."""
    test: Test | None = None
    is_for_us: bool | None = None
    is_ours: bool | None = None
    always: bool | None = None
    """The condition holds for every packet (true) or none (false)."""
    asks: Callable[["Flow"], Match] | None = None
    """A function for what the flow does not tell: whether the kernel finds it in a large set, or what time it is."""
    unknown: bool = False
    """Whether the condition asks for something that is not known of a flow."""
    one_of: tuple["Condition", ...] | None = None
    """One of these, at least: the elements of a set."""
    each: tuple["Condition", ...] | None = None
    """Conditions that all have to hold."""
    negated: bool = False
    of_set: bool = False
    """The condition asks the kernel whether addresses are in a set."""

    def excludes(self, flow: Flow) -> bool:
        """Whether it asks for addresses that no packet of the flow has."""
        if self.negated:
            return False
        ends = zip((self.source, self.destination), flow.ends, strict=True)
        return (
            any(wanted is not None and _address(wanted, network) is Match.NO for wanted, network in ends)
            or (self.test is not None and self.test.field == "ethertype" and self.test.holds(flow) is Match.NO)
            or any(each.excludes(flow) for each in self.each or ())
            or (self.one_of is not None and all(each.excludes(flow) for each in self.one_of))
        )

    def holds(self, flow: Flow) -> Match:
        """Whether the condition holds for all packets of the flow, for none, or for some."""
        if flow.is_arp and self._is_of_ip:
            return Match.NO  # nor does its negation: the kernel finds no such field
        found = self._holds(flow)
        if self.negated and found in (Match.YES, Match.NO):
            return Match.NO if found is Match.YES else Match.YES
        return found

    @property
    def _is_of_ip(self) -> bool:
        """Whether it asks for what packets of IP alone have."""
        return (
            (self.protocol, self.ports, self.is_for_us) != (None, None, None)
            or (self.test is not None and self.test.field not in _OF_FRAMES)
            or any(each._is_of_ip for each in (*(self.one_of or ()), *(self.each or ())))
        )

    def _holds(self, flow: Flow) -> Match:
        found = [Match.MAYBE] if self.unknown else []
        for wanted, network in zip((self.source, self.destination), flow.ends, strict=True):
            found += [_address(wanted, network)] if wanted is not None else []
        for name, interface in ((self.incoming, flow.incoming), (self.outgoing, flow.outgoing)):
            found += [_interface(name, interface, flow.elsewhere)] if name is not None else []
        if self.protocol is not None:
            found.append(_equal(flow.protocol, flow.protocol == self.protocol))
        if self.ports is not None:
            found.append(_equal(flow.port, self.ports[0] <= flow.port <= self.ports[1]))
        if self.states is not None:
            inside = flow.states & self.states
            found.append(Match.NO if not inside else Match.YES if inside == flow.states else Match.MAYBE)
        if self.test is not None:
            found.append(self.test.holds(flow))
        if self.is_for_us is not None:
            is_for_us = True if flow.is_masqueraded and flow.is_answer else flow.is_for_us
            is_known = is_for_us is not None or flow.is_multicast
            is_it = is_for_us is self.is_for_us and not flow.is_multicast
            found.append((Match.YES if is_it else Match.NO) if is_known else Match.MAYBE)
        if self.is_ours is not None:
            is_ours = flow.is_ours or (flow.is_masqueraded and not flow.is_answer)
            found.append(Match.YES if is_ours is self.is_ours else Match.NO)
        if self.always is not None:
            found.append(Match.YES if self.always else Match.NO)
        if self.asks is not None:
            found.append(self.asks(flow))
        if self.one_of is not None:
            found.append(_any_of(condition.holds(flow) for condition in self.one_of))
        if self.each is not None:
            found.append(all_of([condition.holds(flow) for condition in self.each]))
        return all_of(found)


@frozen
class Given:
    """The addresses and the port that a rule gives packets as their source, or as their destination."""

    networks: tuple[Network, ...] | None = None
    """One of these; none: an address of this host, of the interface that decides; None: unknown."""
    port: int = 0
    """The (first) port; 0: that of the packets."""
    is_kept: bool = False
    """The address stays, and only the port is another."""
    is_mapped: bool = False
    """The bits of the one network change, and those of the host stay (NETMAP)."""
    options: int = 0
    """NF_NAT_RANGE_... of masquerading and of SNAT, such as for random ports; not those that say what is given."""

    def of(self, end: Network) -> tuple[Network, ...] | None:
        """What packets with this end get; see `networks`."""
        if self.is_kept:
            return (end,)
        if not self.is_mapped or not self.networks or end.prefixlen < self.networks[0].prefixlen:
            return self.networks
        (network,) = self.networks
        number = int(network.network_address) | int(end.network_address) & int(network.hostmask)
        return (type(end)((number, end.prefixlen)),)


@frozen
class ForeignRule:
    """A rule of any program."""

    text: str
    """The rule as a person would look for it."""
    conditions: tuple[Condition, ...]
    kind: Effect
    target: str = ""
    """The chain that a jump goes to."""
    chain: str = ""
    """The chain that it is in."""
    number: int = 0
    """Position in the chain; the first is 1."""
    handle: int = 0
    """The number by which nftables knows it."""
    marking: Marking | None = None
    """None: the marks stay."""
    given: Given = Given()
    """What it gives packets, if it translates or diverts them."""
    is_plain: bool = True
    """iptables-nft can show the rule."""
    only_logs: bool = False
    """Whether all that it does is to log."""
    is_exact: bool = True
    """The conditions and the effect are all that there is to it."""

    def matches(self, flow: Flow) -> Match:
        """Whether all its conditions hold."""
        return all_of([condition.holds(flow) for condition in self.conditions])


@frozen
class ForeignChain:
    """A chain of any program."""

    name: str
    rules: tuple[ForeignRule, ...]
    hook: NfHook | None = None
    """None: no base chain."""
    priority: int = 0
    drops: bool = False
    """Whether the chain's policy is drop."""
    devices: tuple[str, ...] = ()
    """Devices whose packets the chain sees; empty: all."""
    translates: bool = False
    """The chain translates addresses only (type nat)."""


@frozen
class ForeignTable:
    """A table of iptables or nftables."""

    firewall: str
    """The firewall that has the table: LEGACY or NFT."""
    version: int
    """IP version, 4 or 6; 0: both."""
    name: str
    chains: Mapping[str, ForeignChain]
    is_whole: bool = True
    """False: it has so many rules that they were not all read, so nothing is certain."""
    family: str = ""
    """`netdev`, `bridge`, `arp`; empty: that of the version."""
    is_plain: bool = True
    """iptables-nft can show the table."""
    is_volatile: bool = False
    """What its rules do changes without them: elements of sets come and go by themselves, or programs with queues."""

    @property
    def word(self) -> str:
        """The address family, as nft writes it."""
        return self.family or WORDS[self.version]


@frozen
class Drop:
    """What drops packets, or gives them another source."""

    firewall: str
    version: int
    table: str
    chain: str
    """Name of the base chain."""
    rule: ForeignRule | None
    """None: the policy of the chain."""
    is_certain: bool
    """No rule before may accept them."""
    is_part: bool = False
    """A share of the packets is dropped only."""
    family: str = ""
    """Address family of the table, as nft writes it."""
    before: ForeignRule | None = None
    """Where the policy decides: the rule that leaves the chain; None: its end."""
    is_plain: bool = True
    """iptables-nft can show the table."""
    hook: NfHook | None = None
    """The hook of the base chain."""
    priority: int = 0
    """The priority of the base chain."""

    @property
    def is_early(self) -> bool:
        """Whether the base chain sees packets before connection tracking does."""
        return is_before_tracking(self.hook, self.priority)


def fate(
    tables: Iterable[ForeignTable], way: Sequence[NfHook], flow: Flow, *, kind: Effect = Effect.DROP
) -> list[Drop]:
    """What drops packets of the flow on their way through these hooks, for certain or perhaps.

    Each base chain is asked for itself: what is dropped in one is looked for in the others all the same. With
    TRANSLATE: what gives the packets another source.
    """
    mine = [table for table in tables if table.version in (0, flow.source.version)]
    bases = [(table, chain) for table in mine for chain in table.chains.values() if chain.hook in way]
    bases.sort(key=lambda base: (way.index(base[1].hook or NfHook.PREROUTING), base[1].priority))
    found = []
    for table, chain in bases:
        device = flow.outgoing if chain.hook is NfHook.EGRESS else flow.incoming
        is_there = not chain.devices or device in chain.devices
        is_there = is_there and (bool(table.family) or not flow.is_arp)  # family inet sees no ARP
        if not is_there or (chain.translates and not flow.states & State.NEW):
            continue  # addresses are translated once for a connection
        end, flow = _passed(table, chain, flow)
        if chain.translates or kind is not Effect.TRANSLATE:
            found += _drops(table, chain, end, kind)
    return found


def _passed(table: ForeignTable, chain: ForeignChain, flow: Flow) -> tuple["_End", Flow]:
    """How packets leave a base chain, and as what: other marks, and perhaps not tracked."""
    seen = flow.at(chain.hook, min(chain.priority, _MASQUERADED) if chain.translates else chain.priority)
    end, after = _walk(table, chain, seen, {})
    states = flow.states | after.states & State.UNTRACKED
    states = after.states if after.states == State.UNTRACKED else states
    return end, replace(flow, mark=after.mark, connection_mark=after.connection_mark, states=states)


def marked(tables: Iterable[ForeignTable], way: Sequence[NfHook], flow: Flow) -> tuple[Bits, Drop | None]:
    """The mark that packets have after these hooks, and the rule that has set it, if one has for certain."""
    before, setting = flow.mark, None
    bases = [(table, chain) for table in tables for chain in table.chains.values() if chain.hook in way]
    for table, chain in sorted(bases, key=lambda base: base[1].priority):
        is_there = not chain.devices or flow.incoming in chain.devices
        if is_there and not chain.translates and table.version in (0, flow.source.version):
            _, after = _passed(table, chain, flow)
            if after.mark != flow.mark:
                setting = _setting(table, chain, flow)
            flow = after
    return flow.mark, setting if flow.mark != before else None


def _setting(table: ForeignTable, base: ForeignChain, flow: Flow) -> Drop | None:
    """The last rule of a table that sets the mark of the packets, as far as one is found."""
    seen = flow.at(base.hook, base.priority)
    others = (chain for chain in table.chains.values() if chain.hook is None)
    rules = [
        rule
        for chain in (base, *others)
        for rule in chain.rules
        if rule.marking and not rule.marking.is_of_connection
    ]
    fitting = [rule for rule in rules if rule.matches(seen) is not Match.NO]
    return _drop_of(table, base, fitting[-1], is_certain=True) if fitting else None


def tracked(tables: Iterable[ForeignTable], way: Sequence[NfHook], flow: Flow) -> Drop | None:
    """The rule that keeps connection tracking from the packets for certain; None: the packets are tracked."""
    for table in tables:
        for chain in table.chains.values():
            if chain.hook in way and table.version in (0, flow.source.version):
                end, after = _passed(table, chain, flow)
                if after.states == State.UNTRACKED and table.is_whole:
                    return _drop_of(table, chain, end.untracking, is_certain=True)
    return None


def _drops(table: ForeignTable, chain: ForeignChain, end: "_End", kind: Effect) -> list[Drop]:
    is_certain = table.is_whole and not end.may_accept
    found = [
        _drop_of(table, chain, rule, is_certain=table.is_whole and rule in end.shares, is_part=rule in end.shares)
        for rule in end.may_end
        if _at(chain.hook, rule.kind) is kind
    ]
    if _at(chain.hook, end.kind) is kind:
        found.append(_drop_of(table, chain, end.rule, is_certain=is_certain, is_part=end.is_part))
    elif end.kind is Effect.NOTHING and chain.drops and kind is Effect.DROP:
        drop = _drop_of(table, chain, None, is_certain=is_certain, is_part=end.is_part)
        found.append(replace(drop, before=end.rule))
    return found


def _at(hook: NfHook | None, kind: Effect) -> Effect:
    """The effect at a hook: before routing, a translation (NETMAP) is one of the destination."""
    is_early = kind is Effect.TRANSLATE and hook in (NfHook.PREROUTING, NfHook.OUTPUT)
    return Effect.DIVERT if is_early else kind


def _drop_of(
    table: ForeignTable, chain: ForeignChain, rule: ForeignRule | None, *, is_certain: bool, is_part: bool = False
) -> Drop:
    where = (table.firewall, table.version, table.name, chain.name)
    return Drop(*where, rule, is_certain, is_part, table.word, None, table.is_plain, chain.hook, chain.priority)


def without(table: ForeignTable, chains: Collection[str]) -> ForeignTable:
    """The table as if these chains were not there, nor the jumps to them."""
    kept = {
        name: replace(chain, rules=tuple(rule for rule in chain.rules if rule.target not in chains))
        for name, chain in table.chains.items()
        if name not in chains
    }
    return replace(table, chains=kept)


def concerning(tables: Iterable[ForeignTable], flow: Flow) -> list[ForeignTable]:
    """The tables without the rules that no packet of the flow matches, because of its addresses.

    Of thousands of rules a few are left, which every packet that stands for the flow is then asked about.
    """
    return [
        replace(table, chains={name: _concerning(chain, flow) for name, chain in table.chains.items()})
        for table in tables
        if table.version in (0, flow.source.version)
    ]


def _concerning(chain: ForeignChain, flow: Flow) -> ForeignChain:
    seen = (flow,) if flow.masqueraded_as is None else (flow, replace(flow, is_masqueraded=True))
    kept = tuple(
        rule for rule in chain.rules if not all(any(each.excludes(one) for each in rule.conditions) for one in seen)
    )
    return chain if len(kept) == len(chain.rules) else replace(chain, rules=kept)


def is_used(table: ForeignTable) -> bool:
    """Whether it has any rule, or a policy that drops."""
    return not table.is_whole or any(chain.rules or chain.drops for chain in table.chains.values())


@frozen
class _End:
    """How the way through a chain ends: ACCEPT, DROP, TRANSLATE, or NOTHING (its end, or a return)."""

    kind: Effect
    rule: ForeignRule | None = None
    """The rule that ended it; None: the end of the chain."""
    may_accept: bool = False
    """A rule on the way may have accepted it."""
    may_end: tuple[ForeignRule, ...] = ()
    """Rules on the way that may drop or translate the packets."""
    untracking: ForeignRule | None = None
    shares: tuple[ForeignRule, ...] = ()
    """Rules of `may_end` that drop a share of the packets for certain."""
    is_part: bool = False
    """A share of the packets has left before."""


_Known = dict[tuple[str, Bits, Bits, State], tuple[_End, Flow]]
_ENDS: Final = (Effect.ACCEPT, Effect.DROP, Effect.TRANSLATE, Effect.DIVERT)
_LETS_GO: Final = (Effect.ACCEPT, Effect.DIVERT)
"""Ends after which no rule of the chain drops the packet."""


def _walk(table: ForeignTable, chain: ForeignChain, flow: Flow, known: _Known) -> tuple[_End, Flow]:
    """How the packets leave the chain, and as what. `known`: how chains end, each walked once.

    The kernel lets no chain jump to itself, but chains are not read all at one moment.
    """
    may_accept = may_have_left = is_part = False
    may_end: dict[ForeignRule, None] = {}
    shares: dict[ForeignRule, None] = {}
    untracking: ForeignRule | None = None
    for rule in chain.rules:
        match = rule.matches(flow)
        if match is Match.NO:
            continue
        is_certain = match is Match.YES and not may_have_left
        is_share = match is Match.PART and not may_have_left
        if rule.kind is Effect.NOTHING:
            flow = _marked(flow, rule, is_certain=is_certain)
            continue
        if rule.kind is Effect.UNTRACK and not flow.states & State.INVALID:
            continue  # they are tracked already
        if rule.kind is Effect.UNTRACK:
            flow = replace(flow, states=State.UNTRACKED if is_certain else flow.states | State.UNTRACKED)
            untracking = rule
            continue
        end, after = _end(table, rule, flow, known)
        flow = after if is_certain else _either(flow, after)
        untracking = end.untracking or untracking
        shares |= dict.fromkeys(end.shares if is_certain and not may_accept else ())
        is_part = is_part or (end.is_part and is_certain) or (is_share and end.kind in _ENDS)
        may_accept = may_accept or end.may_accept or (end.kind in _LETS_GO and not is_certain and not is_share)
        may_end |= dict.fromkeys(end.may_end)
        if rule.kind in (Effect.RETURN, Effect.GOTO) and end.kind is Effect.NOTHING:
            if match is Match.YES:
                left = None if may_have_left else rule
                return _End(
                    Effect.NOTHING, left, may_accept, tuple(may_end), untracking, tuple(shares), is_part
                ), flow
            may_have_left = True
        elif end.kind in _ENDS and is_certain:
            return _End(end.kind, end.rule, may_accept, tuple(may_end), untracking, tuple(shares), is_part), flow
        elif end.kind in _ENDS:
            if end.kind is not Effect.ACCEPT and end.rule:
                may_end[end.rule] = None
                shares |= {end.rule: None} if is_share and not may_accept else {}
            if match is Match.YES:
                break  # it ends all that have not left before
    return _End(Effect.NOTHING, None, may_accept, tuple(may_end), untracking, tuple(shares), is_part), flow


def _end(table: ForeignTable, rule: ForeignRule, flow: Flow, known: _Known) -> tuple[_End, Flow]:
    """Follows a packet that matches the rule to its end: a verdict, or the end of the chain to which
    the rule jumps.
    """
    if rule.kind in _ENDS:
        return _End(rule.kind, rule), flow
    if rule.kind in (Effect.JUMP, Effect.GOTO) and rule.target in table.chains:
        key = (rule.target, flow.mark, flow.connection_mark, flow.states)
        if key not in known:
            known[key] = _End(Effect.NOTHING, None, may_accept=True), flow  # should it jump to itself
            known[key] = _walk(table, table.chains[rule.target], flow, known)
        return known[key]
    return _End(Effect.NOTHING, None, may_accept=rule.kind is not Effect.RETURN), flow


def _marked(flow: Flow, rule: ForeignRule, *, is_certain: bool) -> Flow:
    change = rule.marking
    if change is None:
        return flow
    if change.is_of_connection:
        after = replace(flow, connection_mark=change.changed(flow.connection_mark, flow.mark))
    else:
        after = replace(flow, mark=change.changed(flow.mark, flow.connection_mark))
    return after if is_certain else _either(flow, after)


def _either(one: Flow, other: Flow) -> Flow:
    """Packets that may be one or the other."""
    if one == other:
        return one
    marks = _either_bits(one.mark, other.mark), _either_bits(one.connection_mark, other.connection_mark)
    return replace(one, mark=marks[0], connection_mark=marks[1], states=one.states | other.states)


def _either_bits(one: Bits, other: Bits) -> Bits:
    unknown = one.unknown | other.unknown | (one.value ^ other.value)
    return Bits(one.value & ~unknown, unknown)


def of_connection(condition: Condition, *, is_answer: bool = False) -> Condition:
    """Condition that the first packet of the connection holds this, or an answer to it does.

    A packet that is not tracked has no connection, and the condition does not hold, nor does its negation.
    """

    def asks(flow: Flow) -> Match:
        if is_answer and (flow.name == "outside" or flow.masqueraded_as is not None):
            return Match.MAYBE  # answers are for the address that masquerading gives
        flow = replace(flow, is_masqueraded=False)
        ways = (flow, flow.reversed) if flow.may_go_both_ways else (flow,)
        found = {condition.holds(way if flow.is_answer is is_answer else way.reversed) for way in ways}
        return found.pop() if len(found) == 1 else Match.MAYBE

    return tracked_only(Condition(asks=asks))


def of_owner(*, has_none: bool = False) -> Condition:
    """Condition on the process that sends a packet; `has_none`: it holds if there is none."""
    return Condition(asks=lambda flow: Match.MAYBE if flow.is_of_process else Match.YES if has_none else Match.NO)


def tracked_only(condition: Condition) -> Condition:
    """Condition on what connection tracking knows of a packet; without that, it does not hold."""
    return Condition(each=(_TRACKED, condition))


_TRACKED: Final = Condition(states=State.NEW | State.ESTABLISHED | State.RELATED)


def all_of(matches: Sequence[Match]) -> Match:
    """Whether all of the conditions hold, given whether each of them does."""
    if Match.NO in matches:
        return Match.NO
    if Match.MAYBE in matches:
        return Match.MAYBE
    return Match.PART if Match.PART in matches else Match.YES


def _any_of(matches: Iterable[Match]) -> Match:
    found = Match.NO
    for match in matches:
        if match is Match.YES:
            return match
        found = match if match is Match.MAYBE or (match is Match.PART and found is Match.NO) else found
    return found


def _address(wanted: Network, network: Network) -> Match:
    if contains(wanted, network):
        return Match.YES
    return Match.MAYBE if contains(network, wanted) else Match.NO


def _interface(name: str, interface: str, elsewhere: Collection[str]) -> Match:
    if name == "+" or not interface:
        return Match.YES if name == "+" else Match.NO if name in elsewhere else Match.MAYBE
    is_it = interface.startswith(name[:-1]) if name.endswith("+") else interface == name
    return Match.YES if is_it else Match.NO


def _equal(known: int, is_it: bool) -> Match:
    if not known:
        return Match.MAYBE
    return Match.YES if is_it else Match.NO
