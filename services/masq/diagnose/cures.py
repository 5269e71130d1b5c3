"""The narrow command that lets our packets pass where another program drops them, and where it has to be kept. Pure.

No cure deletes, empties or weakens a rule, a chain or a policy of another program: a rule is added that accepts the
packets that are lost, right before what drops them, and nothing else.
"""

import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Final

from flannelette.services.core.cure import written
from flannelette.services.core.family import Network
from flannelette.services.core.frozen import frozen
from flannelette.services.masq.diagnose.verdict import (
    ECHO,
    ECHO_REPLY,
    IPTABLES,
    LEGACY,
    ND,
    NFT,
    PROGRAMS,
    WORDS,
    Drop,
    ForeignTable,
    NfHook,
    is_masqueraded_at,
)

UDP: Final = 17
_ICMP: Final = 1
_NAMES: Final = {UDP: "udp", _ICMP: "icmp", 58: "icmpv6"}
_ICMP_TYPES: Final = {
    **dict.fromkeys(ECHO.values(), "echo-request"),
    **dict.fromkeys(ECHO_REPLY.values(), "echo-reply"),
    ND[1]: "neighbour-solicitation",
    ND[2]: "neighbour-advertisement",
}
"""The names that firewalld gives the types of ICMP and ICMPv6."""
MOST_PEERS: Final = 64
"""Largest number of addresses in one command."""
PERSISTENT: Final[Sequence[tuple[str, bool, str]]] = (
    ("/etc/iptables/rules.v{version}", True, "netfilter-persistent loads {path} at boot: write it in there too"),
    ("/etc/sysconfig/ip{six}tables", True, "iptables.service loads {path} at boot: write it in there too"),
    ("/etc/nftables.conf", False, "nftables.service loads {path} at boot: write it in there too"),
    ("/etc/sysconfig/nftables.conf", False, "nftables.service loads {path} at boot: write it in there too"),
)
"""Files of rules, whether iptables reads them, and what to say."""
_WITH_INCOMING: Final = frozenset((NfHook.INGRESS, NfHook.PREROUTING, NfHook.INPUT, NfHook.FORWARD))
"""Hooks at which rules may ask for the interface that a packet has come by."""
_WITH_OUTGOING: Final = frozenset((NfHook.OUTPUT, NfHook.POSTROUTING))
"""Hooks at which rules ask for the interface that packets of the host itself leave by."""
_ELSEWHERE: Final = "lasts until {what} is made anew: write it down where that is done, too"
_NO_STATE: Final = (
    "No rule there can tell answers from other packets, because {why}: "
    "have the rule that drops name what it is for, or stand in a chain of filter"
)
_WHY_NO_STATE: Final = {
    "netdev": "chains of netdev know no connections",
    "bridge": "chains of bridge know no connections, but where the kernel has nf_conntrack_bridge",
}
"""Why a rule cannot ask for the connection, by the family of the table; any other: the chain is before connection
tracking."""
_NOT_ROUTED: Final = frozenset((NfHook.INGRESS, NfHook.PREROUTING, NfHook.BRIDGE_PREROUTING, NfHook.BRIDGE_INPUT))
"""Hooks at which the kernel has not decided yet whether a packet is for this host or is forwarded."""
_OWN_LEFT_OUT: Final = (
    "Accept them there, but none to an address of this host, whose ports the rule guards too: nftables cannot ask "
    "for these at this hook, and they are too many for a rule, or the kernel does not say which there are"
)
_NO_CONNECTION: Final = (
    "No rule there can tell pods' packets from those of the host itself, whose address masquerading has given them: "
    "have the rule that drops name what it is for, or stand in a chain of filter"
)
_OF_IPTABLES: Final = frozenset((table, hook.name) for table, hooks in IPTABLES.items() for hook in hooks)
_ZONE: Final = re.compile(r"filter_(?:IN|FWD)_(?!policy_)(.+?)(?:_(?:pre|log|deny|allow|post))?$")
"""Names of firewalld's chains from 1.0 on; packets that such a chain does not accept end there."""
_FIREWALLD: Final = ("firewall-cmd", "--permanent")
_PANIC: Final = "firewalld_policy_drop"
"""The table of firewalld that drops every packet, in its panic mode and while it loads its rules."""
_F2B_TABLE: Final = "f2b-table"
"""The table of fail2ban in nftables, where all jails have one chain."""
_UFW_PROTOCOLS: Final = {50: "esp", 51: "ah", 47: "gre"}
_NIXOS: Final = (
    "networking.firewall.extraCommands (with nftables: extraInputRules, extraForwardRules) of configuration.nix"
)


@frozen
class Accept:
    """Packets that a cure accepts."""

    sources: tuple[Network, ...] = ()
    """Source networks; None: any."""
    destinations: tuple[Network, ...] = ()
    protocol: int = 0
    port: int = 0
    """Destination port; 0: any."""
    is_answer: bool = False
    """Only packets of connections that exist are accepted."""
    incoming: str = ""
    """Interface that the packets come by; empty: any."""
    icmp: int | None = None
    """The type, of packets of ICMP or ICMPv6; None: any."""
    is_forwarded: bool = False
    """Only packets that the host forwards: where routing has not decided yet, what the host takes is left out."""
    is_masqueraded: bool = False
    """The packets are masqueraded: where hooks see the host's address instead, a rule asks who has begun the
    connection."""
    begun_by: tuple[Network, ...] = ()
    """Networks that have begun the connections of the packets; none: any."""
    is_arp: bool = False
    """The packets are of ARP, with the addresses that stand in it."""
    outgoing: str = ""
    """Interface that packets of this host itself leave by; empty: any."""
    left_out: tuple[Network, ...] = ()
    """Destinations that are left out by their addresses, where a rule cannot ask what the host takes."""


@frozen
class Host:
    """What cures depend on of the host; empty: unknown."""

    files: frozenset[str] = frozenset()
    """Files of PERSISTENT that the host has."""
    own: tuple[Network, ...] = ()
    """The destinations of packets that it takes itself: its addresses, those of broadcasts and of groups."""
    pods: tuple[Network, ...] = ()
    """The addresses of its pods."""


UNKNOWN_HOST: Final = Host()


@frozen
class Cure:
    """The commands to type, and how to keep their effect."""

    commands: tuple[tuple[str, ...], ...]
    """The words of each command, in order; empty: there is no command."""
    keep: str = ""
    """A sentence: where the rule has to be written so that it lasts."""

    @property
    def text(self) -> str:
        """The commands as they are typed, with what keeps them as a comment; empty: there is no command."""
        return written(map(shlex.join, self.commands), self.keep)


@frozen
class Owner:
    """A program that keeps rules of its own."""

    name: str
    chains: str
    """Pattern of the names of its chains."""
    tables: str = "(?!)"
    """Pattern of the names of its nftables tables."""
    is_engine: bool = False
    """The program enforces NetworkPolicies, and isolates pods for them."""
    has_policies: bool = False
    """Where it has chains, the policies of the table are its own."""


OWNERS: Final = (
    Owner("firewalld", r"(IN|FWD[IO]?|FORWARD_(IN|OUT))_.*|INPUT_(ZONES|direct).*", f"firewalld|{_PANIC}"),
    Owner("ufw", "ufw6?-.*", has_policies=True),
    Owner("fail2ban", "f2b-.*|fail2ban-.*", _F2B_TABLE),
    Owner("crowdsec", "(?i:crowdsec.*)", "crowdsec6?"),
    Owner("docker", "DOCKER(-.*)?", "docker-bridges", has_policies=True),
    Owner("NixOS", "nixos-fw.*|nixos-drop", "nixos-fw"),
    Owner("kube-router", "KUBE-(ROUTER|POD-FW|NWPLCY)-.*", is_engine=True),
    Owner("Calico", "cali-.*|filter-(FORWARD|INPUT|OUTPUT)", "calico", is_engine=True),
    Owner("Cilium", "(OLD_)?CILIUM_.*", is_engine=True),
    Owner("Antrea", "ANTREA-.*", is_engine=True),
    Owner("Weave Net", "WEAVE-NPC.*", is_engine=True),
    Owner("kube-network-policies", "(?!)", "kube-network-policies|kindnet.*", is_engine=True),
    Owner("kube-proxy", "KUBE-.*", "kube-proxy"),
)


def owner_of(drop: Drop, table: ForeignTable | None) -> Owner | None:
    """Returns the program whose rule or policy drops packets, as far as names tell."""
    chain = drop.rule.chain if drop.rule else drop.chain
    for owner in OWNERS:
        if drop.firewall != LEGACY and re.fullmatch(owner.tables, drop.table):
            return owner
        if re.fullmatch(owner.chains, chain):
            return owner
    if table is None or drop.rule is not None:
        return None
    names = [owner for owner in OWNERS if owner.has_policies and _has_chains(table, owner)]
    return names[0] if names else None


def _has_chains(table: ForeignTable, owner: Owner) -> bool:
    return any(re.fullmatch(owner.chains, name) for name in table.chains)


def tool_of(drop: Drop) -> str:
    """The program that shows the table best."""
    if drop.firewall == LEGACY:
        return PROGRAMS[drop.version]
    is_of_iptables = drop.version > 0 and drop.is_plain and (drop.table, drop.chain) in _OF_IPTABLES
    return f"{'iptables' if drop.version == 4 else 'ip6tables'}-nft" if is_of_iptables else NFT


def cure_of(
    drop: Drop,
    accepts: Sequence[Accept],
    owner: Owner | None,
    host: Host,
    bridge: str,
    chains: Collection[str] = (),
) -> Cure:
    """The cure that lets these packets pass, and no others. `chains`: those of the table."""
    if drop.table == _PANIC:
        return Cure(
            (), "firewalld drops every packet of the host in its panic mode, which `firewall-cmd --panic-off` ends."
        )
    if any(len(each.sources) > MOST_PEERS or len(each.destinations) > MOST_PEERS for each in accepts):
        return Cure(
            (), "Accept them from the addresses of the nodes (`flannelette peers` lists these), and from no others."
        )
    if any(each.protocol and not (each.sources or each.destinations) for each in accepts):
        return Cure(
            (), "Accept them from the addresses of the other nodes alone, of which the kernel here knows none."
        )
    if _is_stateless(drop) and any(each.is_answer for each in accepts):
        others = list(dict.fromkeys(each for accept in accepts for each in _of_any_state(drop, accept)))
        made = cure_of(drop, others, owner, host, bridge, chains) if others else Cure(())
        why = _WHY_NO_STATE.get(drop.family, "connection tracking has not seen these yet")
        is_all = all(list(_of_any_state(drop, accept)) for accept in accepts)
        return made if is_all else replace(made, keep=_NO_STATE.format(why=why))
    name = owner.name if owner else ""
    special = {"firewalld": _firewalld, "ufw": _ufw, "fail2ban": _unban, "crowdsec": _unban}.get(name)
    own = special(drop, accepts, name, chains) if special and not any(each.is_arp for each in accepts) else None
    if own:
        return own
    exact = list(dict.fromkeys(_exact(drop, each, host) for each in accepts))
    kept = [each for each in exact if isinstance(each, Accept)]
    not_said = next((each for each in exact if isinstance(each, str)), "")
    return Cure(tuple(_insertions(drop, kept)), not_said or _keep(drop, name, host.files, bridge))


def exempting(drop: Drop, accepts: Sequence[Accept], owner: Owner | None, host: Host) -> Cure:
    """The cure that exempts these packets from a rule that translates addresses."""
    keep = 'docker: "ip-masq": false in /etc/docker/daemon.json' if owner and owner.name == "docker" else ""
    exact = [each for each in (_exact(drop, accept, host) for accept in accepts) if isinstance(each, Accept)]
    return Cure(tuple(_insertions(drop, exact)), keep or _keep(drop, owner.name if owner else "", host.files, ""))


def _is_stateless(drop: Drop) -> bool:
    """Whether no rule there can ask what connection a packet is of."""
    return drop.is_early or drop.family in _WHY_NO_STATE


def _of_any_state(drop: Drop, accept: Accept) -> Iterator[Accept]:
    """What to accept where no rule can ask for answers: all packets between these pods; none if an end is open, or
    is this host, whose ports are not for pods.
    """
    is_masqueraded = accept.is_masqueraded and is_masqueraded_at(drop.hook, drop.priority, answers=accept.is_answer)
    is_between = accept.is_forwarded and accept.sources and accept.destinations
    if not accept.is_answer or (is_between and not is_masqueraded):
        yield replace(accept, is_answer=False)


def _exact(drop: Drop, accept: Accept, host: Host) -> Accept | str:
    """What to write at the hook of the drop, with only what a rule can ask for there; a sentence: why none can."""
    if accept.is_arp:
        return accept if drop.family == "arp" else replace(accept, incoming="", outgoing="")
    if accept.is_masqueraded and is_masqueraded_at(drop.hook, drop.priority, answers=accept.is_answer):
        if drop.family == "netdev":
            return _NO_CONNECTION
        accept = (
            replace(accept, destinations=(), begun_by=accept.destinations)
            if accept.is_answer
            else replace(accept, sources=(), begun_by=accept.sources)
        )
    accept = replace(
        accept,
        incoming=accept.incoming if drop.hook in _WITH_INCOMING else "",
        outgoing=accept.outgoing if drop.hook in _WITH_OUTGOING else "",
    )
    if not accept.is_forwarded or drop.hook not in _NOT_ROUTED:
        return replace(accept, is_forwarded=False)
    if drop.hook is NfHook.PREROUTING or drop.family == "netdev":
        return accept
    (version,) = {end.version for end in (*accept.sources, *accept.destinations)}
    own = [each for each in host.own if each.version == version]
    left_out = tuple(each for each in own if not accept.destinations or any(map(each.overlaps, accept.destinations)))
    return (
        replace(accept, is_forwarded=False, left_out=left_out)
        if own and len(left_out) <= MOST_PEERS
        else _OWN_LEFT_OUT
    )


def _insertions(drop: Drop, accepts: Sequence[Accept]) -> Iterator[tuple[str, ...]]:
    """Commands that insert an accept right before the rule that drops; if a policy drops, at the end of the chain."""
    before = drop.rule or drop.before
    chain = before.chain if before else drop.chain
    tool = tool_of(drop)
    for accept in accepts:
        if tool == NFT:
            place = ("handle", str(before.handle)) if before else ()
            verb = "insert" if before else "add"
            words = ("nft", verb, "rule", drop.family, drop.table, chain, *place, *_nft_match(accept), "accept")
            yield words
        else:
            at = ("-I", chain, str(before.number)) if before else ("-A", chain)
            yield (tool, "-t", drop.table, *at, *_iptables_match(accept), "-j", "ACCEPT")


def _iptables_match(accept: Accept) -> list[str]:
    is_v6 = any(end.version == 6 for end in (*accept.sources, *accept.destinations))
    rows: tuple[tuple[object, tuple[str, ...]], ...] = (
        (accept.sources, ("-s", ",".join(map(_short, accept.sources)))),
        (accept.destinations, ("-d", ",".join(map(_short, accept.destinations)))),
        (accept.incoming, ("-i", accept.incoming)),
        (accept.outgoing, ("-o", accept.outgoing)),
        (accept.protocol, ("-p", _NAMES.get(accept.protocol, str(accept.protocol)))),
        (
            accept.icmp is not None,
            ("--icmp-type" if accept.protocol == _ICMP else "--icmpv6-type", str(accept.icmp)),
        ),
        (accept.port, ("--dport", str(accept.port))),
        (accept.is_answer or accept.begun_by, ("-m", "conntrack")),
        (accept.is_answer, ("--ctstate", "RELATED,ESTABLISHED")),
        (accept.begun_by, ("--ctorigsrc", *map(str, accept.begun_by[:1]))),
        (accept.is_forwarded, ("-m", "addrtype", "--dst-type", "UNICAST")),
        # there, UNICAST is a class
        (accept.is_forwarded and is_v6, ("-m", "addrtype", "!", "--dst-type", "LOCAL,ANYCAST")),
    )
    return [word for is_asked, words in rows if is_asked for word in words]


def _nft_match(accept: Accept) -> list[str]:
    def end(option: str, networks: Sequence[Network], sign: str = "") -> tuple[object, tuple[str, ...]]:
        some = ", ".join(map(_short, networks))
        of_ip = (*(_ip(each) for each in networks[:1]), option, *filter(None, [sign]))
        words = ("arp", option, "ip") if accept.is_arp else of_ip
        return networks, (*words, some if len(networks) == 1 else f"{{ {some} }}")

    rows: tuple[tuple[object, tuple[str, ...]], ...] = (
        end("saddr", accept.sources),
        end("daddr", accept.destinations),
        end("daddr", accept.left_out, "!="),
        (accept.incoming, ("iifname", accept.incoming)),
        (accept.outgoing, ("oifname", accept.outgoing)),
        _nft_protocol(accept),
        (accept.is_answer, ("ct", "state", "established,related")),
        *((each, ("ct", "original", _ip(each), "saddr", str(each))) for each in accept.begun_by[:1]),
        (accept.is_forwarded, ("fib", "daddr", "type", "unicast")),
    )
    return [word for is_asked, words in rows if is_asked for word in words]


def _nft_protocol(accept: Accept) -> tuple[object, tuple[str, ...]]:
    if accept.port:
        return True, ("udp", "dport", str(accept.port))
    if accept.icmp is not None:
        return True, ("icmp" if accept.protocol == _ICMP else "icmpv6", "type", str(accept.icmp))
    return accept.protocol, ("meta", "l4proto", str(accept.protocol))


def _ip(network: Network) -> str:
    return WORDS[network.version]


def _keep(drop: Drop, owner: str, files: Collection[str], bridge: str) -> str:
    """The sentence that says where the rule has to be written to last."""
    six = "6" if drop.version == 6 else ""
    match owner:
        case "docker" if drop.rule is None:
            return (
                'docker sets this policy anew at its start: "ip-forward-no-drop": true in /etc/docker/daemon.json '
                "keeps it from that (docker 28 and later)"
            )
        case "docker":
            return (
                f"docker drops direct access to containers{f' on {bridge}' if bridge else ''}, and makes its rules "
                'anew at its start: "allow-direct-routing": true in /etc/docker/daemon.json lasts '
                "(docker 28.2 and later)"
            )
        case "NixOS":
            return f"NixOS makes its rules anew: write it into {_NIXOS} too"
        case "ufw":
            return f"ufw makes its rules anew: write it into /etc/ufw/before{six}.rules too"
        case "firewalld":
            return "firewalld makes its rules anew at its next reload"
    is_iptables = tool_of(drop) != NFT
    for form, of_iptables, said in PERSISTENT:
        path = form.format(version=drop.version or 4, six=six)
        if of_iptables is is_iptables and path in files:
            return said.format(path=path)
    what = f"table {drop.table}" if not is_iptables else f"chain {drop.chain}"
    return _ELSEWHERE.format(what=what)


def _firewalld(drop: Drop, accepts: Sequence[Accept], _name: str, chains: Collection[str]) -> Cure | None:
    """Commands of firewalld, which makes its rules again whenever it likes, so that only its own commands last."""
    accepts = [each for each in accepts if not each.is_answer or each.is_forwarded]  # firewalld lets answers pass
    zone = _ZONE.match(drop.rule.chain) if drop.rule else None
    commands = [
        *_of_policy("flannel", "ANY", [each for each in accepts if not each.protocol and not each.outgoing], chains),
        *_of_policy(
            "flannel-host", "HOST", [each for each in accepts if not each.protocol and each.outgoing], chains
        ),
    ]
    if rules := _rich_rules(each for each in accepts if each.protocol):
        commands.append((*_FIREWALLD, *((f"--zone={zone[1]}",) if zone else ()), *rules))
    return Cure((*commands, ("firewall-cmd", "--reload"))) if commands else None


def _of_policy(
    name: str, ingress: str, accepts: Iterable[Accept], chains: Collection[str]
) -> Iterator[tuple[str, ...]]:
    """Commands that have a policy of firewalld accept these, and make it where no chain shows that it is there."""
    rules = _rich_rules(accepts)
    if not rules:
        return
    policy = (*_FIREWALLD, f"--policy={name}")
    if not any(chain.endswith(f"_policy_{name}") for chain in chains):
        yield (*_FIREWALLD, f"--new-policy={name}")
        yield (*policy, "--set-priority=-1")
        yield (*policy, f"--add-ingress-zone={ingress}")
        yield (*policy, "--add-egress-zone=ANY")
    yield (*policy, *rules)


def _short(network: Network) -> str:
    """An address without its length."""
    return str(network.network_address if network.prefixlen == network.max_prefixlen else network)


def _rich_rules(accepts: Iterable[Accept]) -> list[str]:
    """Options that add rules of firewalld which accept these."""
    rules = []
    for accept in accepts:
        for source, destination in product(accept.sources or (None,), accept.destinations or (None,)):
            version = next(end.version for end in (source, destination) if end is not None)
            words = [f'rule family="ipv{version}"']
            words += [f'source address="{_short(source)}"'] if source else []
            words += [f'destination address="{_short(destination)}"'] if destination else []
            if accept.port:
                words.append(f'port port="{accept.port}" protocol="udp"')
            elif accept.icmp is not None:
                words.append(f'icmp-type name="{_ICMP_TYPES[accept.icmp]}"')
            elif accept.protocol:
                words.append(f'protocol value="{accept.protocol}"')
            rules.append(f"--add-rich-rule={' '.join(words)} accept")
    return rules


def _ufw(drop: Drop, accepts: Sequence[Accept], _name: str, _chains: Collection[str]) -> Cure | None:
    verb = ("prepend",) if drop.rule and "-user-" in drop.rule.chain else ()
    commands = []
    for accept in accepts:
        if not accept.protocol and accept.is_answer:
            continue  # ufw lets answers pass
        if not accept.protocol:
            ends = [
                word
                for option, networks in (("from", accept.sources), ("to", accept.destinations))
                for word in ((option, str(networks[0])) if networks else ())
            ]
            kind = () if accept.outgoing else ("route",)
            by = ("out", "on", accept.outgoing) if accept.outgoing else ()
            by = ("in", "on", accept.incoming) if accept.incoming else by
            commands.append(("ufw", *kind, *verb, "allow", *by, *ends))
            continue
        how = ("udp" if accept.port else _UFW_PROTOCOLS.get(accept.protocol)) or ""
        if not how or not (accept.sources or accept.destinations):
            return None
        port = ("port", str(accept.port)) if accept.port else ()
        to = ("to", "any", *port) if port else ()
        commands += [("ufw", *verb, "allow", "from", _short(each), *to, "proto", how) for each in accept.sources]
        to_peers = accept.destinations if not accept.sources else ()
        commands += [("ufw", *verb, "allow", "out", "to", _short(each), *port, "proto", how) for each in to_peers]
    return Cure(tuple(commands)) if commands else None


def _unban(drop: Drop, accepts: Sequence[Accept], name: str, _chains: Collection[str]) -> Cure | None:
    """Commands that lift a ban of the nodes' addresses, in the program that has banned them."""
    banned = sorted({_short(each) for accept in accepts for each in (*accept.sources, *accept.destinations)})
    if drop.rule is None or not all(accept.protocol and accept.icmp in (None, *ND.values()) for accept in accepts):
        return None
    if name == "crowdsec":
        keep = "Put the nodes' addresses into an allowlist of crowdsec (`cscli allowlists`), or they are banned again"
        return Cure(tuple(("cscli", "decisions", "delete", "--ip", each) for each in banned), keep)
    jail = drop.rule.chain.removeprefix("f2b-").removeprefix("fail2ban-")
    keep = "Put the nodes' addresses into ignoreip of /etc/fail2ban/jail.local, or they are banned again"
    lift = ("unban",) if drop.table == _F2B_TABLE else ("set", jail, "unbanip")
    return Cure(tuple(("fail2ban-client", *lift, each) for each in banned), keep)
