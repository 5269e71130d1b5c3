"""`flannelette doctor`: what is wrong with the nodes, and what cures it.

With `--fix` it carries out cures (ADR 39). A service sends a code and arguments (`services/core/cure.py`); its text
is never carried out. Each command is made here, of arguments of known types, and only after `FACTS` has found on
this host what makes the command right: the setting is off, the bridge is down, the address is that of the node's own
subnet. What a command does is to set what the overlay needs, to put back what the pods' bridge has lost, or to have
the kernel compute the checksums of the overlay's own devices; it deletes nothing, and no firewall is touched.
"""

import asyncio
import json
import os
import re
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from ipaddress import ip_interface, ip_network
from pathlib import Path
from typing import Any, Final

import click

from flannelette.lease.v1 import lease_pb2
from flannelette.lease.v1.lease_pb2_grpc import LeaseServiceStub
from flannelette.services.core.conditions import Condition
from flannelette.services.core.cure import Command, commands_of
from flannelette.services.core.errors import Unavailable
from flannelette.services.core.frozen import frozen
from flannelette.services.ctl.answers import assess_all
from flannelette.services.ctl.command import command, confirm, require_terminal
from flannelette.services.ctl.commands.addresses import lost_addresses
from flannelette.services.ctl.commands.cloud import cloud_problems
from flannelette.services.ctl.connect.call import ask_lease_service
from flannelette.services.ctl.connect.contexts import Nodes, lease_services
from flannelette.services.ctl.connect.targets import SERVICES, Service, Targets
from flannelette.services.ctl.host import Own, obstacle_to, output_of, own_subnets
from flannelette.services.ctl.node_health import NodeHealth, State
from flannelette.services.ctl.options import node_file
from flannelette.services.ctl.packet_path import PathStep, broken_places
from flannelette.services.ctl.problems import (
    SILENCE,
    Problem,
    different_versions,
    doctor_text,
    merged,
    problem_of,
    problems,
    reported,
    version_of,
)
from flannelette.services.ctl.screen import Screen, lines, shown_nodes
from flannelette.services.runtime.os.ethtool import set_checksum_offload

_LOOK_AGAIN_SECONDS: Final = 12.0
"""masq checks every five seconds, the dataplane within a second of most changes."""
_PAUSE: Final = 0.5
_LOST: Final = "pod.addresses-leaked"
_TRAFFIC_CONTROL: Final = ("tc-filter", "queue-drops")
"""Checks of masq about traffic control, which no trace looks at."""


@command(
    scope="networks",
    examples=("flannelette doctor", "flannelette doctor --all", "sudo flannelette doctor --fix"),
)
@click.argument("services", nargs=-1, type=click.Choice(["lease", "dataplane", "masq"]), metavar="[SERVICE]...")
@click.option("--all", "everybody", is_flag=True, help="Also what all nodes have told the lease service.")
@click.option("--fix", is_flag=True, help="Carry out the cures that are safe, on this host, and look again.")
@click.option("--yes", is_flag=True, help="Do not ask before --fix.")
def doctor(nodes: Nodes, screen: Screen, services: tuple[str, ...], everybody: bool, fix: bool, yes: bool) -> int:
    """Show the problems of the nodes and their cures.

    SERVICE is lease, dataplane or masq; the default is all. What loses packets
    comes first. Exits with 0 if there is no problem, with 1 if there is one, and
    with 2 if no service answers.

    --fix sets the sysctls that the overlay needs, puts back what the pods' bridge
    has lost, and turns a broken checksum offload of the overlay's devices off. It
    shows the commands and asks, needs root, deletes nothing, and leaves firewalls
    and other hosts alone: run it on each node. Each command is made and checked by
    this program; FLANNELD_SUBNET_FILE says where the dataplane has another file.
    """
    if not fix:
        return asyncio.run(show_problems(nodes, screen, services, everybody=everybody))
    if not yes:
        require_terminal(screen)
    return _fix(nodes, screen, services, asks=not yes)


async def show_problems(nodes: Nodes, screen: Screen, services: Collection[str], *, everybody: bool = False) -> int:
    """Prints the problems that these services of the nodes tell, or all. 0: none. 1: some. 2: no service answers.

    Raises CallFailed: everybody is asked for, and the lease service does not answer.
    """
    seen = await _examine(nodes, services, everybody=everybody)
    seen.show(screen)
    return seen.exit_code


@frozen
class _Examination:
    """What the nodes have said."""

    targets: dict[str, Targets]
    """The targets of the nodes that were asked, by name."""
    names: list[str]
    """The names of these nodes, and of those that the lease service has told of."""
    node: str
    """The name of the only node, as its services say it; empty: there are several, or none has answered."""
    found: list[Problem]
    reported: list[str]
    """The nodes of `names` that were not asked: what masq finds there is not known, since it tells no
    lease service.
    """
    silent: bool
    """No service that was asked has answered."""

    @property
    def exit_code(self) -> int:
        """0: no problem. 1: there is one. 2: no service answers."""
        return 2 if self.silent else int(bool(self.found))

    def show(self, screen: Screen, fixed: Sequence[str] | None = None) -> None:
        """Prints it; as JSON with the commands that were carried out."""
        if not screen.json:
            screen.show(doctor_text(self.names, self.found, screen.width))
            if self.reported:
                screen.warn(
                    f"of {shown_nodes(self.reported)} this is what dataplanes have told the lease service; masq "
                    "looks at firewalls, and tells it nothing: use a context of all nodes, or ask on the node"
                )
            return
        found = [{**each.document(), "fixable": bool(fixes_of(each))} for each in self.found]
        document = {"node": self.node, "nodes": self.names, "reported": self.reported, "problems": found}
        screen.show_json(document if fixed is None else {**document, "fixed": [*fixed]})


async def _examine(nodes: Nodes, services: Collection[str], *, everybody: bool = False) -> _Examination:
    """Asks these services of the nodes, or all; for `everybody`, also the lease service what other nodes told it."""
    asked = [service for service in SERVICES if not services or service in services]
    health = await assess_all(nodes)
    names = {node: node or each.name or "this host" for node, each in health.items()}
    found = [(names[node], problems(each, asked)) for node, each in health.items()]
    if "dataplane" in asked:
        found = [
            (name, await _traced(nodes, each, told, dict(found)))
            for (name, told), each in zip(found, health.values(), strict=True)
        ]
        for (name, told), node in zip([*found], health, strict=True):
            if not any(each.code == _LOST for each in told):  # the dataplane may not see what root does
                seen = await asyncio.to_thread(lost_addresses, nodes[node]["dataplane"])
                found.append((name, [problem_of("dataplane", each) for each in seen]))
    for node, there in nodes.items():
        if (target := there.get("cloud")) and not services:
            found.append((names[node], await cloud_problems(target)))
    versions = {names[node]: version_of(each) for node, each in health.items()}
    others = list[lease_pb2.Node]()
    if everybody:
        others = [each for each in await _listed(nodes) if each.name not in versions]
        found += reported(others)
        versions |= {each.name: each.version for each in others}
    found.append(("", [*different_versions(versions, "nodes")]))
    return _Examination(
        {names[node]: targets for node, targets in nodes.items()},
        [*versions],
        next(iter(health.values())).name if len(versions) == 1 else "",
        merged(found),
        [each.name for each in others],
        all(each.services[service].state is State.AWAY for each in health.values() for service in asked),
    )


async def _traced(
    nodes: Nodes, node: NodeHealth, told: list[Problem], everywhere: Mapping[str, list[Problem]]
) -> list[Problem]:
    """The problems of a node, with the places where traces end in those that say only that peers are silent.

    Of these peers the first few are traced, each. Where no trace finds it, traffic control of the node or of the peer
    may have dropped the packets.
    `everywhere`: the problems of all nodes that were asked, by name.
    """
    silent = [each for each in told if each.check in SILENCE and each.peers]
    found = await broken_places(nodes, [(node.name, peer) for each in silent for peer in each.peers])
    places = {peer: step for (_, peer), step in found.items()}
    out = list[Problem]()
    for each in told:
        parts = with_places(each, node.name, places) if each in silent else [each]
        if each in silent and not any(peer in places for peer in parts[-1].peers):
            peer = parts[-1].peers[0]
            parts[-1] = with_losing_place(parts[-1], told, peer, everywhere.get(peer, ()))
        out += parts
    return out


def with_places(silent: Problem, node: str, places: Mapping[str, PathStep]) -> list[Problem]:
    """Parts the problem of silent peers by the places where their packets are lost; those unknown are last. Pure.

    `places`: by peer.
    """
    by_place = dict[tuple[str, ...], list[str]]()
    for peer in sorted(silent.peers, key=lambda peer: peer not in places):
        step = places.get(peer)
        said: tuple[str, ...] = (step.node, step.reason, step.cure, f"{step.kind}: {step.text}") if step else ()
        by_place.setdefault(said, []).append(peer)
    parts = list[Problem]()
    for place, peers in by_place.items():
        names = tuple(("", peer) for peer in peers)
        problem = Condition(silent.code, peers=names).problem if silent.code and len(by_place) > 1 else silent.problem
        part = replace(silent, peers=tuple(peers), problem=problem)
        if place:
            where, reason, cure, evidence = place
            reason = reason if where == node else f"On {where}: {reason}"
            part = replace(part, cause=reason, cure=cure, evidence=evidence)
        parts.append(part)
    return parts


def with_losing_place(
    silent: Problem, told: Sequence[Problem], peer: str = "", of_peer: Sequence[Problem] = ()
) -> Problem:
    """Gives the problem of a silent peer its cause, if traffic control has dropped packets. Pure.

    `told` and `of_peer` are the problems of the node and of the peer.
    """
    for where, found in (("", told), (f"On {peer}: ", of_peer)):
        place = next((each for each in found if each.check in _TRAFFIC_CONTROL), None)
        if place is not None:
            return replace(silent, cause=f"{where}{place.cause}", cure=place.cure, evidence=place.evidence)
    return silent


def _fix(nodes: Nodes, screen: Screen, services: Collection[str], *, asks: bool) -> int:
    """Prints the problems, carries out the cures that are safe on this host, looks again and prints what is left."""
    seen = asyncio.run(_examine(nodes, services))
    if not screen.json:
        seen.show(screen)
    chosen = _fixes(seen, screen)
    if chosen and os.geteuid() != 0:
        screen.warn("--fix needs root: use sudo")
        return max(seen.exit_code, 1)
    right = asyncio.run(_right(chosen, own_subnets(node_file("SUBNET_FILE")), screen))
    done = list[str]()
    if right:
        if not screen.json:
            screen.show(lines(["", "To be carried out on this host:", *(f"  {each}" for each in right)]))
        if asks:
            confirm("Carry this out?")
        done = asyncio.run(_carry_out(right, screen))
        seen = asyncio.run(_without(done, nodes, services))
    if done or screen.json:
        seen.show(screen, done)
    return seen.exit_code


async def _carry_out(commands: Sequence[Command], screen: Screen) -> list[str]:
    """Carries out the commands, each also if another fails, and returns those that succeeded."""
    done = list[str]()
    for each in commands:
        try:
            await carry_out(each)
            done.append(str(each))
        except Unavailable as error:
            screen.warn(f"{each}: {error}")
    return done


async def _listed(nodes: Nodes) -> list[lease_pb2.Node]:
    """What the lease services of these nodes know of all; a service of one node knows that one."""
    known = dict[str, lease_pb2.Node]()
    for target in lease_services(nodes):
        answer = await ask_lease_service(
            target, lambda c: LeaseServiceStub(c).ListNodes(lease_pb2.ListNodesRequest())
        )
        known |= {each.name: each for each in answer.nodes if each.name not in known or each.connected}
    return [*known.values()]


async def _right(commands: Sequence[Command], own: Own, screen: Screen) -> list[Command]:
    """Keeps the commands that are right on this host, as far as this host itself tells; prints why others are not."""
    found = list[Command]()
    for each in commands:
        try:
            objection = await objection_to(each, own)
        except Unavailable as error:
            objection = str(error)
        if objection:
            screen.warn(f"{each}: not carried out, because {objection}")
        else:
            found.append(each)
    return found


def _fixes(seen: _Examination, screen: Screen) -> list[Command]:
    """The commands to carry out here, each once; says why others are not."""
    chosen, why = dict[Command, None](), dict[tuple[str, Service], str]()
    for each in seen.found:
        if each.service not in SERVICES or not fixes_of(each):
            continue
        for node in each.nodes:
            place = (node, each.service)
            if place not in why:
                why[place] = obstacle_to(seen.targets[node][each.service])
            if why[place]:
                screen.warn(f"{node}: {why[place]}; run `flannelette doctor --fix` on that node")
            else:
                chosen |= dict.fromkeys(fixes_of(each))
    if seen.found and not chosen and not any(why.values()):
        screen.warn("--fix carries out none of these cures: look at each, and run it yourself")
    return [*chosen]


async def _without(done: Collection[str], nodes: Nodes, services: Collection[str]) -> _Examination:
    """What is found once none of what was cured is there any more, or after a while."""
    loop = asyncio.get_running_loop()
    until = loop.time() + _LOOK_AGAIN_SECONDS
    while True:
        seen = await _examine(nodes, services)
        if not any(str(command) in done for each in seen.found for command in fixes_of(each)) or loop.time() > until:
            return seen
        await asyncio.sleep(_PAUSE)


_OUR_DEVICES: Final = re.compile(r"flannel[\w.-]{0,8}|fl-[\w.-]{1,12}")


def fixes_of(problem: Problem) -> tuple[Command, ...]:
    """The commands that --fix may carry out against this problem, once they are found right; none: it is advice.

    Of a lease service nothing is carried out: it has no rights on this host, and may be another host's.
    """
    return commands_of(problem.cure) if problem.service in ("dataplane", "masq") else ()


async def objection_to(command: Command, own: Own) -> str:
    """Why this command is not right on this host now; empty: it is. Raises Unavailable: that cannot be found out."""
    return await FACTS[command.code](command.arguments, own)


async def carry_out(command: Command) -> None:
    """Carries out a command that nothing objects to. Raises Unavailable, with the reason."""
    if command.code == "sysctl":
        _write_sysctl(command.arguments[0])
    elif command.code == "offload-off":
        _leave_to_the_kernel(command.arguments[0])
    else:
        await output_of(command.words)


async def _setting_is_off(arguments: Sequence[str], _own: Own) -> str:
    path, value = _sysctl(arguments[0])
    if path.parent.parent.name == "conf" and path.parent.name != "all":
        with suppress(OSError):
            socket.if_nametoindex(path.parent.name)
            return "" if _read(path) != value else f"{path} is {value} already"
        return f"there is no interface {path.parent.name}"
    if path.name == "rp_filter":
        return "it would concern every interface"
    return "" if _read(path) != value else f"{path} is {value} already"


async def _bridge_is_down(arguments: Sequence[str], own: Own) -> str:
    link = await _bridge(arguments[0])
    if "UP" in link["flags"]:
        return f"{arguments[0]} is up already"
    return await _is_of_pods(arguments[0], own)


async def _address_is_lost(arguments: Sequence[str], own: Own) -> str:
    address, device = ip_interface(arguments[0]), arguments[1]
    if address not in own:
        return f"no subnet file of this node says {address}"
    await _bridge(device)
    if await _ip("addr", "show", "to", str(address.ip)):
        return f"this host has {address.ip} already"
    return await _is_of_pods(device, own)


async def _route_is_lost(arguments: Sequence[str], own: Own) -> str:
    network, device = ip_network(arguments[0]), arguments[1]
    ours = [each for each in own if each.network == network]
    if not ours:
        return f"no subnet file of this node says {network}"
    if len(arguments) > 2 and all(str(each.ip) != arguments[2] for each in ours):
        return f"{arguments[2]} is not the address of the bridge"
    await _bridge(device)
    if not await _ip("addr", "show", "dev", device, "to", str(ours[0].ip)):
        return f"{device} does not have {ours[0]}"
    return ""


async def _device_is_ours(arguments: Sequence[str], _own: Own) -> str:
    device, feature = arguments
    if not _OUR_DEVICES.fullmatch(device) or feature == "tx":
        return f"{device} is not a device of the overlay"
    try:
        socket.if_nametoindex(device)
    except OSError:
        return f"there is no interface {device}"
    return ""


FACTS: Final[Mapping[str, Callable[[Sequence[str], Own], Awaitable[str]]]] = {
    "sysctl": _setting_is_off,
    "link-up": _bridge_is_down,
    "bridge-address": _address_is_lost,
    "bridge-route": _route_is_lost,
    "bridge-route-v6": _route_is_lost,
    "offload-off": _device_is_ours,
}
"""Check by code of `services/core/cure.py::COMMANDS`: returns what speaks against the command on this host, or
nothing.
"""


async def _bridge(device: str) -> Any:
    """The bridge, as `ip -json link` tells of it. Raises Unavailable: there is none of this name."""
    with suppress(Unavailable):
        for link in await _ip("-details", "link", "show", "dev", device):
            if link.get("linkinfo", {}).get("info_kind") == "bridge":
                return link
    raise Unavailable(f"there is no bridge {device}")


async def _is_of_pods(device: str, own: Own) -> str:
    """Why this bridge is not the pods': it has addresses of another network."""
    for link in await _ip("addr", "show", "dev", device, "scope", "global"):
        for each in link.get("addr_info", ()):
            address = ip_interface(f"{each['local']}/{each['prefixlen']}")
            if not any(address.ip in subnet.network for subnet in own):
                return f"{device} has {address}, which lies outside of this node's own subnet"
    return ""


async def _ip(*words: str) -> Any:
    """What `ip -json` answers: a list."""
    answer = json.loads(await output_of(("ip", "-json", *words)) or "[]")
    return [each for each in answer if each]


def _sysctl(setting: str) -> tuple[Path, str]:
    """The file of a setting `KEY=VALUE`, and the value."""
    key, _, value = setting.partition("=")
    return Path("/proc/sys", key if "/" in key else key.replace(".", "/")), value


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError as error:
        raise Unavailable(f"cannot read {path}: {error.strerror}") from None


def _write_sysctl(setting: str) -> None:
    path, value = _sysctl(setting)
    try:
        path.write_text(value)
    except OSError as error:
        raise Unavailable(f"cannot write {path}: {error.strerror}") from None


def _leave_to_the_kernel(device: str) -> None:
    """What ethtool would do, which few hosts have."""
    try:
        set_checksum_offload(device, on=False)
    except OSError as error:
        raise Unavailable(f"cannot turn the checksum offload of {device} off: {error.strerror}") from None
