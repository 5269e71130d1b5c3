"""What changes the kernel, or says how it would: `flannelette diff`, `resync`, `handover` and `teardown`."""

import asyncio
import sys
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from operator import not_
from typing import Any, Final, TypeAlias

import click
import grpc.aio
from google.protobuf.json_format import Parse
from rich.text import Text

from flannelette.cloud.v1 import cloud_pb2
from flannelette.dataplane.v1 import dataplane_pb2 as pb
from flannelette.dataplane.v1.dataplane_pb2_grpc import DataplaneServiceStub
from flannelette.masq.v1 import masq_pb2
from flannelette.masq.v1.masq_pb2_grpc import MasqServiceStub
from flannelette.services.core.formats.text import count
from flannelette.services.ctl.command import carry_out, command
from flannelette.services.ctl.connect.call import LONG_SECONDS, CallFailed, Channels, ask, or_failure
from flannelette.services.ctl.connect.contexts import Nodes
from flannelette.services.ctl.connect.targets import Service, Target, Targets
from flannelette.services.ctl.follow import Row, Shown, show_each
from flannelette.services.ctl.options import node_file, watched
from flannelette.services.ctl.screen import Screen, lines, to_json
from flannelette.services.runtime.networks import suffix_of

Done: TypeAlias = (
    pb.ResyncKernelResponse
    | pb.TeardownKernelResponse
    | pb.HandOverResponse
    | masq_pb2.ResyncRulesResponse
    | masq_pb2.TeardownRulesResponse
    | cloud_pb2.SyncRoutesResponse
    | cloud_pb2.TeardownRoutesResponse
)
Reply: TypeAlias = Done | CallFailed
Call: TypeAlias = Callable[[bool, grpc.aio.Channel], Awaitable[Done]]
Ask: TypeAlias = Callable[[Target, Callable[[grpc.aio.Channel], Awaitable[Done]], float], Awaitable[Done]]

_RESYNC: Final[Mapping[Service, Call]] = {
    "dataplane": lambda dry, c: DataplaneServiceStub(c).ResyncKernel(pb.ResyncKernelRequest(dry_run=dry)),
    "masq": lambda dry, c: MasqServiceStub(c).ResyncRules(masq_pb2.ResyncRulesRequest(dry_run=dry)),
}
_TEARDOWN: Final[Mapping[Service, Call]] = {
    "dataplane": lambda dry, c: DataplaneServiceStub(c).TeardownKernel(pb.TeardownKernelRequest(dry_run=dry)),
    "masq": lambda dry, c: MasqServiceStub(c).TeardownRules(masq_pb2.TeardownRulesRequest(dry_run=dry)),
}
_HAND_OVER: Final[Mapping[Service, Call]] = {
    "dataplane": lambda dry, c: DataplaneServiceStub(c).HandOver(pb.HandOverRequest(dry_run=dry)),
}
_CLEANERS: Final[Mapping[str | None, Mapping[Service, Sequence[str]]]] = {
    None: {},
    "ours": {"dataplane": []},
    "all": {"dataplane": ["--everything"], "masq": []},
}
"""The words for the `api.cleanup` of each service that has left something: what a flanneld does not need, or all."""

_services = click.argument(
    "services", nargs=-1, type=click.Choice(["dataplane", "masq"]), metavar="[dataplane|masq]..."
)


@command(scope="every")
@_services
@watched
def diff(nodes: Nodes, screen: Screen, services: tuple[str, ...], watch: bool) -> int:
    """Show how the kernel differs from the desired state.

    Prints the exact ip, bridge and iptables commands of a resync, and changes
    nothing. Exits as diff does: 0 if there is nothing to do, 1 if there is, 2 if
    that could not be found out. With --watch, a pipe gets a line for each
    command that becomes necessary, or is not any more.
    """
    return show_difference(nodes, screen, services, is_watching=watch)


@command()
@_services
@click.option("--dry-run", is_flag=True, help="Change nothing, print the commands; exit with 1 if there are any.")
async def resync(targets: Targets, screen: Screen, services: tuple[str, ...], dry_run: bool) -> int:
    """Reconcile the kernel with the leases.

    Prints the equivalent ip, bridge and iptables commands.
    """
    return await reconcile(targets, screen, services, dry_run=dry_run)


@command()
@click.option("--dry-run", is_flag=True, help="Change nothing, print the commands.")
async def handover(targets: Targets, screen: Screen, dry_run: bool) -> int:
    """Hand the kernel state over to flanneld.

    Rewrites routes as flannel writes them, and loses no packet. The dataplane
    keeps running, paused until `flannelette resync` or a restart: stop it, then
    start flanneld.
    """
    return _tell(await _call_all(_HAND_OVER, [targets["dataplane"]], dry_run), screen, dry_run)


@command()
@_services
@click.option("--dry-run", is_flag=True, help="Remove nothing, print the commands.")
@click.option("--keep-foreign", "left", flag_value="ours", help="Only leftovers that flanneld does not need.")
@click.option("--offline", "left", flag_value="all", help="Call no service: remove what stopped services have left.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def teardown(
    targets: Targets, screen: Screen, services: tuple[str, ...], dry_run: bool, yes: bool, left: str | None
) -> int:
    """Remove the overlay from the kernel of this node.

    Pods of this node can then reach no pod of another node. The services keep
    running, paused until `flannelette resync` or a restart.

    --offline does the same once the services are stopped, to uninstall them or
    where they do not start: of each network that files in /var/lib/flannelette
    name, or the one that --network names. FLANNELD_STATE_DIR, FLANNELD_SUBNET_FILE
    and FLANNELD_ROUTE_PROTOCOL say where services had others. It needs root.

    --keep-foreign cleans up after a dataplane that was stopped without
    `flannelette handover`, while a flanneld runs: it removes the objects that
    bear our mark, keeps those that flanneld needs, and loses no packet. It calls
    no service and needs root.
    """
    return remove(targets, screen, services, dry_run=dry_run, yes=yes, left=left)


def show_difference(nodes: Nodes, screen: Screen, services: Collection[str], *, is_watching: bool) -> int:
    """Shows what a resync of these services would do, or of all: `flannelette diff`."""

    async def look(targets: Targets, channels: Channels) -> Shown:
        replies = await _call_all(_RESYNC, _chosen(targets, services), True, channels.ask)
        failures = {service: reply for service, reply in replies.items() if isinstance(reply, CallFailed)}
        done = {service: reply for service, reply in replies.items() if not isinstance(reply, CallFailed)}
        rows = {
            f"{service} {command}": Row(
                "", ((service,), ("needed",), (command,)), {"service": service, "command": command}
            )
            for service, reply in done.items()
            for command in reply.commands
        }
        return Shown(
            lambda _: lines(plan_text(service, reply, dry_run=True) for service, reply in done.items()),
            _document(replies),
            2 if failures else int(_has_commands(replies)),
            ("SERVICE", "STATE", "COMMAND"),
            rows,
            1,
            tuple(f"{service}: {failure}" for service, failure in failures.items()),
            failure=next(iter(failures.values()), None),
            is_empty=not done,
        )

    return show_each(nodes, screen, look, is_watching=is_watching, worst=max)


async def reconcile(targets: Targets, screen: Screen, services: Collection[str], *, dry_run: bool) -> int:
    """Reconciles the kernel by these services, or by all: `flannelette resync`."""
    replies = await _call_all(_RESYNC, _chosen(targets, services), dry_run)
    return max(_tell(replies, screen, dry_run), int(dry_run and _has_commands(replies)))


def remove(
    targets: Targets,
    screen: Screen,
    services: Collection[str],
    *,
    dry_run: bool,
    yes: bool,
    left: str | None = None,
) -> int:
    """Removes what these services keep in the kernel, or all: `flannelette teardown`. Asks first, unless `yes`."""
    if left == "ours" and "masq" in services:
        raise click.UsageError("--keep-foreign is for the dataplane only: flanneld takes over the rules of masq")
    programs = {name: words for name, words in _CLEANERS[left].items() if name in (services or _CLEANERS[left])}
    network = targets["dataplane"].network
    networks = [network] if network or left != "all" else _networks_left()

    def act(dry_run: bool) -> int:
        done = (
            _clean_up(programs, networks, dry_run)
            if programs
            else _call_all(_TEARDOWN, _chosen(targets, services), dry_run)
        )
        return _tell(asyncio.run(done), screen, dry_run)

    loss = "" if left == "ours" else " Pods of this node lose their peers."
    question = f"Remove all of this?{loss}"
    return carry_out(act, screen, question, "be removed", dry_run=dry_run, yes=yes, is_worth_it=not_)


def _chosen(targets: Targets, services: Collection[str]) -> list[Target]:
    """The targets that can be changed; those of `services` if there are any."""
    return [targets[service] for service in _RESYNC if not services or service in services]


async def _clean_up(
    programs: Mapping[Service, Sequence[str]], networks: Sequence[str], dry_run: bool
) -> dict[str, Reply]:
    """Removes what stopped services have left, by a program of each with these words, for each of these networks.

    Empty as a network: the one without a name.
    """
    dry = ["--dry-run"] if dry_run else []
    return {
        f"{service}{suffix_of(network)}": await _run_program(
            service, [*words, *([f"--network={network}"] if network else []), *dry]
        )
        for network in networks
        for service, words in programs.items()
    }


def _networks_left() -> list[str]:
    """The networks of services that have run here, by their state files; empty as a name: the one without.

    A subnet file alone says nothing: it may be a flanneld's.
    """
    state = node_file("STATE_DIR")
    homes = (state, *(state.with_name(f"{state.name}-{service}") for service in _CLEANERS["all"]))
    files = [each for home in homes for service in _CLEANERS["all"] for each in home.glob(f"{service}-*.state")]
    named = sorted({each.stem.partition("-")[2] for each in files})
    return [*([""] if node_file("SUBNET_FILE").exists() or not named else []), *named]


async def _run_program(service: Service, words: Sequence[str]) -> Reply:
    program = (sys.executable, "-P", "-m", f"flannelette.services.{service}.api.cleanup", *words)
    child = await asyncio.create_subprocess_exec(*program, stdout=PIPE, stderr=PIPE)
    printed, complaint = await child.communicate()
    if child.returncode:
        return CallFailed(complaint.decode(errors="replace").strip().rpartition("\n")[2])
    kind = masq_pb2.TeardownRulesResponse if service == "masq" else pb.TeardownKernelResponse
    return Parse(printed, kind())


async def _call_all(
    calls: Mapping[Service, Call], targets: Sequence[Target], dry_run: bool, asking: Ask = ask
) -> dict[str, Reply]:
    """Calls the services one after the other, each also if another fails."""
    return {
        each.service: await or_failure(asking(each, partial(calls[each.service], dry_run), LONG_SECONDS))
        for each in targets
    }


def _tell(replies: Mapping[str, Reply], screen: Screen, dry_run: bool) -> int:
    """Shows what was done; returns 1 if that failed in part."""
    if screen.json:
        screen.show_json(_document(replies))
    for service, reply in replies.items():
        if isinstance(reply, CallFailed):
            screen.warn(f"{service}: {reply}")
        elif not screen.json:
            screen.show(plan_text(service, reply, dry_run=dry_run))
    codes = {
        reply.exit_code if isinstance(reply, CallFailed) else int(bool(_errors_of(reply)))
        for reply in replies.values()
    }
    return codes.pop() if len(codes) == 1 else 1


def _document(replies: Mapping[str, Reply]) -> dict[str, Any]:
    return {s: {"error": str(r)} if isinstance(r, CallFailed) else to_json(r) for s, r in replies.items()}


def _has_commands(replies: Mapping[str, Reply]) -> bool:
    return any(not isinstance(reply, CallFailed) and reply.commands for reply in replies.values())


def plan_text(service: str, done: Done, *, dry_run: bool) -> Text:
    """The commands, one a line and never folded, so that they can be copied; everything else is a comment."""
    number = count(len(done.commands), "command")
    summary = f"{number} to run" if dry_run else f"{number} run"
    out = [
        Text(f"# {service}: {summary if done.commands else 'nothing to do'}", style="dim"),
        *map(Text, done.commands),
    ]
    out += [Text(f"# failed: {error}", style="red") for error in _errors_of(done)]
    return lines(out)


def _errors_of(done: Done) -> Sequence[str]:
    """What could not be done, one sentence each."""
    return done.errors if hasattr(done, "errors") else ()
