"""The rule or route of the host that keeps a packet from its way, and the command against that. Pure.

A rule of another program stays, since it may be about more than our packets: one before it lets these go our way.

A FIB lookup tells the route, but not the rule: this module walks rules and tables as the kernel does (fib_rules.c).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from flannelette.services.core.family import Network
from flannelette.services.core.frozen import frozen
from flannelette.services.dataplane.diagnose.seen import (
    HostAddress,
    KernelSnapshot,
    Lookup,
    PolicyRule,
    ip,
    protocol_text,
)
from flannelette.services.dataplane.netlink import uapi
from flannelette.services.dataplane.netlink.kinds import command, text
from flannelette.services.dataplane.netlink.object_text import address
from flannelette.services.dataplane.netlink.objects import (
    DROPS,
    RT_TABLE_LOCAL,
    RT_TABLE_MAIN,
    RTN_THROW,
    RTPROT_KERNEL,
    Route,
)

_ACTIONS: Final = {6: "blackhole", 7: "unreachable", 8: "prohibit"}
"""Actions of policy rules that drop packets; types of routes have the same numbers (linux/rtnetlink.h,
linux/fib_rules.h).
"""
_TABLES: Final = {253: "default", 254: "main", 255: "local"}


@frozen
class Culprit:
    """The rule or route that decides about a packet."""

    cause: str
    cure: str
    is_general: bool
    """Whether it concerns all packets of the network, not single addresses."""


def culprit(seen: KernelSnapshot, question: Lookup, network: Network, answer: Route | None) -> Culprit | None:
    """Why a packet into the network does not go where it should. None: rules and routes do not explain it.

    `answer` is the route that the kernel says it takes; None: it refuses the packet.
    """
    family, rules = question.family, seen.rules.get(question.family, ())
    if rules and not any(r.table == RT_TABLE_LOCAL and r.action == uapi.FR_ACT_TO_TBL for r in rules):
        cause = f"No {family} rule looks up the local table, which has the addresses of this host."
        return Culprit(cause, f"{ip(family)} rule add priority 0 lookup local", True)
    rule, route = decision(rules, seen.routes.get(family, ()), question, seen.names)
    if answer is not None and (route is None or not _is_same(route, answer)):
        matching = (r for r in rules if r.table == answer.table and _matches(r, question, seen.names))
        rule, route = next(matching, None), answer
    if rule is not None and rule.action in _ACTIONS:
        cause = f"The rule `{rule.priority}: {rule_text(rule)}` drops these packets."
        return Culprit(cause, _exemption(rule, question, network), _is_wide(rule, network))
    if route is not None and answer is None and route.route_type not in DROPS:
        return None  # such a route refuses nothing: something else does
    if route is not None:
        return _of_route(seen, question, network, rule, route)
    if not any(r.table == RT_TABLE_MAIN and r.action == uapi.FR_ACT_TO_TBL for r in rules):
        cure = f"{ip(family)} rule add priority 32766 table main"
        return Culprit(f"No {family} rule looks up the main table, which has all routes to peers.", cure, True)
    return None


def decision(
    rules: Iterable[PolicyRule], routes: Sequence[Route], question: Lookup, names: Mapping[int, str]
) -> tuple[PolicyRule | None, Route | None]:
    """The rule and the route that decide; a rule alone drops by itself; neither: there is no route."""
    skip_to = 0
    for rule in rules:
        if rule.priority < skip_to or not _matches(rule, question, names):
            continue
        if rule.action == uapi.FR_ACT_GOTO:
            skip_to = rule.target
        elif rule.action in _ACTIONS:
            return rule, None
        elif rule.action == uapi.FR_ACT_TO_TBL:
            route = _best(routes, rule.table, question)
            if route is not None and route.route_type != RTN_THROW and route.length > rule.suppressed_length:
                return rule, route
    return None, None


def rule_text(rule: PolicyRule) -> str:
    """Prints a policy rule as `ip rule show` does, without the priority."""
    words = ["not"] if rule.is_inverted else []
    words += ["from", _prefix(rule.src, rule.src_length) if rule.src_length else "all"]
    words += ["to", _prefix(rule.dst, rule.dst_length)] if rule.dst_length else []
    words += [f"fwmark {rule.mark:#x}/{rule.mask:#x}"] if rule.mask else []
    words += [f"iif {rule.iif}"] if rule.iif else []
    words += [f"oif {rule.oif}"] if rule.oif else []
    words += [f"ipproto {protocol_text(rule.protocol)}"] if rule.protocol else []
    first, last = rule.ports
    words += [f"dport {first}" if first == last else f"dport {first}-{last}"] if last else []
    table = _TABLES.get(rule.table, str(rule.table))
    words.append(_ACTIONS.get(rule.action, f"lookup {table}"))
    return " ".join(words)


def plain(route: Route) -> Route:
    """The route as people write it: IPv6 has one that drops go out of lo."""
    return route._replace(ifindex=0) if route.route_type in DROPS else route


def address_behind(seen: KernelSnapshot, route: Route) -> HostAddress | None:
    """The address of this host that a route has come with, and goes with; None: there is none."""
    if route.protocol != RTPROT_KERNEL:
        return None
    for each in seen.addresses:
        is_its_own = route.table == RT_TABLE_LOCAL and (each.address, route.length) == (route.dst, 8 * len(route.dst))
        is_its_network = (each.ifindex, each.length) == (route.ifindex, route.length) and each.has_route
        if each.family.af == route.family and (
            is_its_own or (is_its_network and is_in(each.address, route.dst, route.length))
        ):
            return each
    return None


def removal_of(seen: KernelSnapshot, route: Route) -> tuple[str, str]:
    """A cause and its cure: the address that this route comes with, or the route itself."""
    route, behind = plain(route), address_behind(seen, route)
    if behind is not None:
        name, place = (
            seen.names.get(behind.ifindex, f"if{behind.ifindex}"),
            f"{address(behind.address)}/{behind.length}",
        )
        return f"{name} of this host has {place}.", f"ip addr del {place} dev {name}"
    return f"The route `{text(route, seen.names)}` takes these packets.", command("del", route, seen.names)


def _of_route(
    seen: KernelSnapshot, question: Lookup, network: Network, rule: PolicyRule | None, route: Route
) -> Culprit:
    family, route = question.family, plain(route)
    said = text(route, seen.names)
    is_general = route.length <= network.prefixlen
    if route.table in (RT_TABLE_MAIN, RT_TABLE_LOCAL) or rule is None:
        return Culprit(*removal_of(seen, route), is_general)
    diverting = f"The rule `{rule.priority}: {rule_text(rule)}` sends these packets by the route `{said}`."
    if rule.priority < 2:
        return Culprit(diverting, _delete(rule), is_general)
    cure = f"{ip(family)} rule add to {network} priority {rule.priority - 1} table main"
    return Culprit(diverting, cure, is_general and _is_wide(rule, network))


def _matches(rule: PolicyRule, question: Lookup, names: Mapping[int, str]) -> bool:
    incoming = names.get(question.iif, "") if question.iif else "lo"
    fits = (
        not rule.is_narrow
        and not rule.oif
        and rule.iif in ("", incoming)
        and not rule.mark & rule.mask
        and rule.protocol in (0, question.protocol)
        and (rule.ports == (0, 0) or rule.ports[0] <= question.port <= rule.ports[1])
        and is_in(question.dst, rule.dst, rule.dst_length)
        and is_in(question.src or bytes(len(question.dst)), rule.src, rule.src_length)
    )
    return fits is not rule.is_inverted


def _best(routes: Iterable[Route], table: int, question: Lookup) -> Route | None:
    found = (r for r in routes if r.table == table and not r.tos and is_in(question.dst, r.dst, r.length))
    return max(found, key=lambda route: (route.length, -route.metric), default=None)


def is_in(packed: bytes, prefix: bytes, length: int) -> bool:
    """Whether an address is in a prefix; all are in one of length 0."""
    shift = 8 * len(packed) - length
    return not length or int.from_bytes(packed) >> shift == int.from_bytes(prefix) >> shift


def is_in_network(packed: bytes, network: Network) -> bool:
    """Whether an address is in a network; those of the other family are not."""
    first = network.network_address.packed
    return len(packed) == len(first) and is_in(packed, first, network.prefixlen)


def _is_same(route: Route, other: Route) -> bool:
    return (route.table, route.dst, route.length) == (other.table, other.dst, other.length)


def _is_wide(rule: PolicyRule, network: Network) -> bool:
    """Whether it is about all packets in a network, as far as their addresses tell."""
    return max(rule.dst_length, rule.src_length) <= network.prefixlen


def _prefix(packed: bytes, length: int) -> str:
    return address(packed) if length == 8 * len(packed) else f"{address(packed)}/{length}"


def _exemption(rule: PolicyRule, question: Lookup, network: Network) -> str:
    """The command for a rule right before one that drops, about those of its packets that go into the network; of a
    tunnel's, which have a port, both for what leaves and for the reverse path of what comes.
    """
    if not rule.priority:
        return _delete(rule)  # no rule can be before it
    if rule.is_inverted:
        rule = PolicyRule(rule.family, rule.priority, rule.action, rule.table)
    if rule.dst_length < network.prefixlen:
        rule = replace(rule, dst=network.network_address.packed, dst_length=network.prefixlen)
    made = f"{ip(rule.family)} rule add priority {rule.priority - 1}"
    said = rule_text(replace(rule, action=uapi.FR_ACT_TO_TBL, table=RT_TABLE_MAIN))
    if rule.protocol or not question.port:
        return f"{made} {said}"
    of_tunnel = f"{made} {said} ipproto {protocol_text(question.protocol)}"
    return f"{of_tunnel} dport {question.port} && {of_tunnel} sport {question.port}"


def _delete(rule: PolicyRule) -> str:
    return f"{ip(rule.family)} rule del priority {rule.priority} {rule_text(rule)}"
