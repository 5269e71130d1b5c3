"""The commands that change the kernel, or say how they would: resync, teardown, handover, diff."""

import asyncio
import sys
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import grpc.aio
from google.protobuf.json_format import Parse

from flannelette.dataplane.v1 import dataplane_pb2
from flannelette.dataplane.v1.dataplane_pb2_grpc import DataplaneServiceStub
from flannelette.masq.v1 import masq_pb2
from flannelette.masq.v1.masq_pb2_grpc import MasqServiceStub
from flannelette.services.ctl.connect.call import LONG_SECONDS, CallFailed, Channels
from flannelette.services.ctl.connect.targets import Service, Target, Targets
from flannelette.services.ctl.follow import Look, Row, Shown
from flannelette.services.ctl.render.changes import Done, errors_of, plan_text
from flannelette.services.ctl.render.layout import lines
from flannelette.services.ctl.render.screen import Screen, to_json
from flannelette.services.runtime.process.networks import suffix_of

Reply: TypeAlias = Done | CallFailed
Call: TypeAlias = Callable[[bool, grpc.aio.Channel], Awaitable[Done]]

_RESYNC: Final[Mapping[Service, Call]] = {
    "dataplane": lambda dry, c: DataplaneServiceStub(c).ResyncKernel(dataplane_pb2.ResyncKernelRequest(dry_run=dry)),
    "masq": lambda dry, c: MasqServiceStub(c).ResyncRules(masq_pb2.ResyncRulesRequest(dry_run=dry)),
}
_TEARDOWN: Final[Mapping[Service, Call]] = {
    "dataplane": lambda dry, c: DataplaneServiceStub(c).TeardownKernel(
        dataplane_pb2.TeardownKernelRequest(dry_run=dry)
    ),
    "masq": lambda dry, c: MasqServiceStub(c).TeardownRules(masq_pb2.TeardownRulesRequest(dry_run=dry)),
}
_HAND_OVER: Final[Mapping[Service, Call]] = {
    "dataplane": lambda dry, c: DataplaneServiceStub(c).HandOver(dataplane_pb2.HandOverRequest(dry_run=dry)),
}
CLEANERS: Final[Mapping[str | None, Mapping[Service, Sequence[str]]]] = {
    None: {},
    "ours": {"dataplane": []},
    "all": {"dataplane": ["--everything"], "masq": []},
}
"""The words for the `api.cleanup` of each service that has left something: what a flanneld does not need, or all."""


def chosen(targets: Mapping[Service, Target], services: Collection[str]) -> list[Target]:
    """The targets that can be changed; those of `services` if there are any."""
    return [targets[service] for service in _RESYNC if not services or service in services]


def diff(services: Collection[str]) -> Look:
    """Returns a look at what a resync of these services would do, or of all.

    Its code is 0 if nothing, 1 if something, 2 if a service could not say.
    """

    async def look(targets: Targets, channels: Channels) -> Shown:
        replies = await _call_all(_RESYNC, chosen(targets, services), True, channels)
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

    return look


async def resync(targets: Sequence[Target], screen: Screen, *, dry_run: bool) -> int:
    """Reconciles the kernel. 1 if that failed in part, or if a dry run finds something to do."""
    replies = await _call_all(_RESYNC, targets, dry_run)
    _show(replies, screen, dry_run)
    return max(_exit_code(replies), int(dry_run and _has_commands(replies)))


async def teardown(targets: Sequence[Target], screen: Screen, *, dry_run: bool) -> int:
    """Removes our kernel objects. 1 if that failed in part."""
    return await _run(_TEARDOWN, targets, screen, dry_run)


async def hand_over(targets: Sequence[Target], screen: Screen, *, dry_run: bool) -> int:
    """Leaves the kernel to a flanneld. 1 if that failed in part."""
    return await _run(_HAND_OVER, targets, screen, dry_run)


async def _run(calls: Mapping[Service, Call], targets: Sequence[Target], screen: Screen, dry_run: bool) -> int:
    replies = await _call_all(calls, targets, dry_run)
    _show(replies, screen, dry_run)
    return _exit_code(replies)


async def clean_up(
    programs: Mapping[Service, Sequence[str]], networks: Sequence[str], screen: Screen, *, dry_run: bool
) -> int:
    """Removes what stopped services have left, by a program of each with these words, for each of these networks.

    Empty as a network: the one without a name. 1 if that failed in part.
    """
    dry = ["--dry-run"] if dry_run else []
    replies = {
        f"{service}{suffix_of(network)}": await _run_program(
            service, [*words, *([f"--network={network}"] if network else []), *dry]
        )
        for network in networks
        for service, words in programs.items()
    }
    _show(replies, screen, dry_run)
    return _exit_code(replies)


def networks_left(subnet_file: Path, state: Path) -> list[str]:
    """The networks of services that have run here, by their state files; empty as a name: the one without.

    A subnet file alone says nothing: it may be a flanneld's.
    """
    homes = (state, *(state.with_name(f"{state.name}-{service}") for service in CLEANERS["all"]))
    files = [each for home in homes for service in CLEANERS["all"] for each in home.glob(f"{service}-*.state")]
    named = sorted({each.stem.partition("-")[2] for each in files})
    return [*([""] if subnet_file.exists() or not named else []), *named]


async def _run_program(service: Service, words: Sequence[str]) -> Reply:
    program = (sys.executable, "-P", "-m", f"flannelette.services.{service}.api.cleanup", *words)
    child = await asyncio.create_subprocess_exec(*program, stdout=PIPE, stderr=PIPE)
    printed, complaint = await child.communicate()
    if child.returncode:
        return CallFailed(complaint.decode(errors="replace").strip().rpartition("\n")[2])
    kind = masq_pb2.TeardownRulesResponse if service == "masq" else dataplane_pb2.TeardownKernelResponse
    return Parse(printed, kind())


async def _call_all(
    calls: Mapping[Service, Call], targets: Sequence[Target], dry_run: bool, channels: Channels | None = None
) -> dict[str, Reply]:
    """Calls the services one after the other, each also if another fails."""
    if channels is None:
        async with Channels() as own:
            return await _call_all(calls, targets, dry_run, own)
    replies: dict[str, Reply] = {}
    for target in targets:
        try:
            call = partial(calls[target.service], dry_run)
            replies[target.service] = await channels.ask(target, call, LONG_SECONDS)
        except CallFailed as failure:
            replies[target.service] = failure
    return replies


def _show(replies: Mapping[str, Reply], screen: Screen, dry_run: bool) -> None:
    if screen.json:
        screen.show_json(_document(replies))
    for service, reply in replies.items():
        if isinstance(reply, CallFailed):
            screen.warn(f"{service}: {reply}")
        elif not screen.json:
            screen.show(plan_text(service, reply, dry_run=dry_run))


def _document(replies: Mapping[str, Reply]) -> dict[str, Any]:
    return {s: {"error": str(r)} if isinstance(r, CallFailed) else to_json(r) for s, r in replies.items()}


def _has_commands(replies: Mapping[str, Reply]) -> bool:
    return any(not isinstance(reply, CallFailed) and reply.commands for reply in replies.values())


def _exit_code(replies: Mapping[str, Reply]) -> int:
    codes = {
        reply.exit_code if isinstance(reply, CallFailed) else int(bool(errors_of(reply)))
        for reply in replies.values()
    }
    return codes.pop() if len(codes) == 1 else 1
