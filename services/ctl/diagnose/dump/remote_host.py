"""Another host's part of a dump: its own sysdump, through ssh, `kubectl exec` or a network namespace."""

import asyncio
import io
import sys
import tarfile
from collections.abc import Sequence
from typing import Final

from flannelette.services.core.errors import Unavailable
from flannelette.services.ctl.connect.targets import SERVICES, Targets, in_network, networks_with_sockets
from flannelette.services.ctl.diagnose.dump.host import output_of, printed
from flannelette.services.ctl.diagnose.dump.parts import (
    MOST_BYTES,
    NOT_COLLECTED,
    Collected,
    Part,
    collect,
    failed,
    without_secrets,
)
from flannelette.services.ctl.diagnose.fixes import process_of

_MOST_BYTES_THERE: Final = 64 << 20
_CONTAINER: Final = "--container="


def host_commands(node: str, targets: Targets) -> list[list[str]]:
    """Commands that run `flannelette` on the node's host; none: this is its host. Raises Unavailable."""
    dialed = [target.dialer for target in targets.values() if target.dialer]
    if dialed:
        prefix = dialed[-1].words
        command = [*prefix, "flannelette", *dict.fromkeys(option for each in dialed for option in each.options)]
        if not _is_of_a_pod(prefix):
            return [command]
        # each container sees its own process, and has tools of its own
        return [[f"{_CONTAINER}{name}" if _CONTAINER in word else word for word in command] for name in SERVICES]
    reason = ""
    networks = [targets, *(in_network(targets, name) for name in networks_with_sockets(targets))]
    # The lease service may be a central one.
    for target in (there[service] for there in networks for service in ("dataplane", "masq")):
        try:
            found = process_of(target)
        except Unavailable as error:
            reason = reason or str(error)
        else:
            if found.is_here:
                return []
            options = dict.fromkeys(option for each in targets.values() for option in each.options)
            program = (sys.executable, "-P", "-m", "flannelette.services.ctl.main")
            return [["nsenter", f"--net={found.process}/ns/net", "--", *program, *options]]
    if node or targets["dataplane"].path is None:
        raise Unavailable(reason)
    return []


async def collect_there(commands: Sequence[Sequence[str]], seconds: float) -> list[Collected]:
    """What `flannelette sysdump --host-only` says there: secrets are taken out before anything leaves the host."""
    shown = await asyncio.gather(*(_shown(command, seconds) for command in commands))
    best = dict[str, Collected]()
    for each in (each for files in shown for each in files):
        if each.name not in best or (best[each.name].failure and not each.failure):
            best[each.name] = each
    if len(best) > 1:
        best.pop("host.txt", None)  # one container has answered
    logs = await collect(_pod_logs(commands[0]), seconds)
    return [*best.values(), *(each for each in logs if not each.failure or "--previous" not in each.name)]


async def _shown(command: Sequence[str], seconds: float) -> list[Collected]:
    words = [*command, "sysdump", "--host-only", f"--timeout={seconds:g}", "--write=-"]
    try:
        return _files(await output_of(words, seconds + 10, _MOST_BYTES_THERE))
    except (Unavailable, tarfile.TarError, EOFError, OSError) as error:
        return [failed("host.txt", str(error))]


def _is_of_a_pod(words: Sequence[str]) -> bool:
    """`kubectl ... exec --stdin POD --container=dataplane --`, as `kubernetes = true` makes it."""
    return "exec" in words and any(word.startswith(_CONTAINER) for word in words)


def _pod_logs(command: Sequence[str]) -> list[Part]:
    if not _is_of_a_pod(command):
        return []
    start = command.index("exec")
    kubectl = [*command[:start], "logs", command[start + 2], "--tail=5000"]

    return [
        Part(f"logs/pod-{name}{''.join(more)}.txt", printed([*kubectl, f"{_CONTAINER}{name}", *more]))
        for name in SERVICES
        for more in ((), ("--previous",))
    ]


def _files(archive: bytes) -> list[Collected]:
    """The regular files of an archive that another host has made: bounded, and none outside of it."""
    found, size = [], 0
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
        for member in tar:
            name = "/".join(member.name.split("/")[2:])  # TOP/NODE/FILE; TOP/README is made anew
            if not member.isreg() or not name or ".." in name.split("/") or size > _MOST_BYTES_THERE:
                continue
            content = tar.extractfile(member)
            text = without_secrets((content.read(MOST_BYTES) if content else b"").decode(errors="replace"))
            failure = text.removeprefix(NOT_COLLECTED).strip() if text.startswith(NOT_COLLECTED) else ""
            size += len(text)
            found.append(Collected(name, text.encode(errors="replace"), failure))
    return found
