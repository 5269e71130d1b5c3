"""`flannelette sysdump`: one archive for a bug report, of one node or of all nodes of a context.

What is collected is a list of parts: the name of a file, and the call that gives its content. Only what a table here
names is read: no file of keys, no configuration of another program, of an environment our own settings. Where a tool
can print keys, the command that is run cannot.
"""

import asyncio
import dataclasses
import io
import json
import os
import re
import sys
import tarfile
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Final, TypeAlias

import click
import grpc.aio
from rich.console import Console
from rich.text import Text

from flannelette.cloud.v1 import cloud_pb2 as cloud
from flannelette.dataplane.v1 import dataplane_pb2 as dataplane
from flannelette.lease.v1 import lease_pb2 as lease
from flannelette.masq.v1 import masq_pb2 as masq
from flannelette.services.core.errors import FlanneletteError, Misconfigured, Unavailable
from flannelette.services.core.formats.text import count, visible
from flannelette.services.core.frozen import frozen
from flannelette.services.ctl.answers import STUBS, assess_all, by_network, status_document
from flannelette.services.ctl.command import command
from flannelette.services.ctl.connect.call import LIST_SECONDS, CallFailed, ask, of_each
from flannelette.services.ctl.connect.contexts import Nodes
from flannelette.services.ctl.connect.targets import (
    SERVICES,
    Service,
    Target,
    Targets,
    in_network,
    networks_with_sockets,
)
from flannelette.services.ctl.host import (
    COMMAND_SECONDS,
    MOST_BYTES,
    opened_itself,
    output_of,
    process_of,
    trusted_users,
    up_to,
)
from flannelette.services.ctl.node_health import NodeHealth
from flannelette.services.ctl.options import Duration
from flannelette.services.ctl.problems import problems
from flannelette.services.ctl.screen import Screen, Width, fold, lines, shown_nodes, to_json
from flannelette.services.runtime.networks import NodeNetwork
from flannelette.services.runtime.process.settings import FLAGS, ProcessSettings, variable_of
from flannelette.services.runtime.process.version import version

Part: TypeAlias = tuple[str, Callable[[], Awaitable[Any]]]
"""A file to be: its name below the node's directory, and what gives its text, or what is written as JSON."""


@frozen
class Collected:
    """One file of the archive."""

    name: str
    data: bytes
    failure: str = ""
    """Why the part is not there; `data` says it too."""


_MOST_BYTES_OF_ALL: Final = 128 << 20
"""Bytes of all files together, before they are packed."""
_NODES_AT_ONCE: Final = 8
_README: Final = """\
Made by `flannelette sysdump` {version} at {time}.
A directory for each node, with one for each network if the node is in several:

  status.json, doctor.json     health and problems, as the command line shows
  leases, nodes, peers, rules, what the services answer (.json)
  cloud
  plan-*.json                  what a resync would change
  events-*.json                what the services did, and why
  settings-*.json              flags of the services
  metrics-*.txt                their metrics, where they have a port for them
  logs/                        of the services
  kernel/, firewall/, system/  what the host shows

{left_out}

"""
_SAID_OF_SECRETS: Final = (
    "Left out: private and preshared keys, passwords, tokens, files of keys, environments. Keys of 32 bytes, public "
    "ones too, stand as a digest. In it: names and addresses of nodes and networks, and all firewall rules."
)
_LEFT_OUT: Final = "(left out)"
_NOT_COLLECTED: Final = "not collected: "
_AT_ONCE: Final = 8


@command(scope="every")
@click.option(
    "-w",
    "--write",
    "path",
    metavar="FILE",
    default="",
    help="The archive, a tar.gz; - is standard output.  [default: a new file here]",
)
@click.option("--host-only", is_flag=True, help="Only what this host shows, without the services' answers.")
@click.option(
    "--timeout",
    type=Duration(plain=1, least=1, most=3600),
    metavar="DURATION",
    default=60,
    help="What is not there by then is left out: 90s, 5m; a number is of seconds.  [default: 60s]",
)
async def sysdump(nodes: Nodes, screen: Screen, path: str, host_only: bool, timeout: float) -> int:
    """Collect everything for a bug report in one file.

    Status, problems, leases, peers, plans, events, settings, metrics, logs,
    kernel objects and firewall rules, of this host or of all nodes of a context.
    Private keys, passwords and tokens are left out. A part that cannot be
    collected is a file that says why. Run it as root, to see everything.
    """
    if path == "-" and sys.stdout.isatty():
        raise Misconfigured("an archive is nothing for a terminal: give --write FILE, or a pipe")
    if path:
        target = None if path == "-" else _new_file(Path(path))
    try:
        by_node = _bounded(await _collect_all(nodes, timeout, host_only=host_only))
    except BaseException:  # Ctrl-C, too
        if path and target:
            target.unlink()
        raise
    now = datetime.now(UTC)
    name = "-".join(["flannelette-sysdump", *([*by_node] if len(by_node) == 1 else []), f"{now:%Y%m%dT%H%M%SZ}"])
    if not path:
        target = _new_file(Path(f"{name}.tar.gz"))
    data = _packed(name, by_node, now)
    if target is None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        screen = replace(screen, console=Console(stderr=True, highlight=False, emoji=False, markup=False))
    else:
        try:
            target.write_bytes(data)
        except OSError as error:
            raise Misconfigured(f"cannot write {target}: {error.strerror}") from None
    if screen.json:
        document = {
            node: [{"name": each.name, "bytes": len(each.data), "failure": each.failure} for each in files]
            for node, files in by_node.items()
        }
        screen.show_json({"file": str(target or ""), "bytes": len(data), "nodes": document})
    else:
        screen.show(_summary(target, len(data), by_node, screen.width))
    return 0


async def _collect_all(nodes: Nodes, seconds: float, *, host_only: bool) -> dict[str, list[Collected]]:
    """Collects the parts of all nodes, by the name of the node's directory."""
    until = time.monotonic() + seconds

    async def one(node: str, targets: Targets) -> tuple[str, list[Collected]]:
        networks = asyncio.create_task(by_network({node: targets}, are_asked=not host_only))
        (name, told), shown = await asyncio.gather(
            _told(node, networks, until, host_only=host_only), _shown(node, targets, networks, until)
        )
        return name, [*told, *shown]

    found = await of_each(nodes, one, _NODES_AT_ONCE)
    return {re.sub(r"^\.|[^\w.-]", "_", name): files for name, files in found.values()}


async def _told(
    node: str, networks: Awaitable[Mapping[str, Nodes]], until: float, *, host_only: bool
) -> tuple[str, list[Collected]]:
    """The name of the node, and what its services answer."""
    by_name, name, parts = await networks, node or os.uname().nodename, list[Part]()
    if host_only:
        return name, []
    assessed = await asyncio.gather(*map(assess_all, by_name.values()))
    for (network, there), health in zip(by_name.items(), assessed, strict=True):
        name = node or health[node].name or name
        parts += _below(network, [*_status(health[node]), *_answered_parts(there[node])])
    return name, await _collect(parts, _left(until))


async def _shown(
    node: str, targets: Targets, networks: Awaitable[Mapping[str, Nodes]], until: float
) -> list[Collected]:
    """What the node's host shows; it does not wait for services that hang."""
    try:
        commands = await asyncio.to_thread(_host_commands, node, targets)
    except Unavailable as error:
        return [_failed("host.txt", str(error))]
    if commands:
        return await _collect_there(commands, _left(until))

    async def of_services() -> list[Collected]:
        by_name = (await networks).items()
        parts = [part for name, there in by_name for part in _below(name, _service_parts(there[node], name))]
        return await _collect(parts, _left(until))

    host, services = await asyncio.gather(_collect(_host_parts(), _left(until)), of_services())
    return [*host, *services]


def _left(until: float) -> float:
    return max(until - time.monotonic(), 1)


def _below(network: str, parts: Iterable[Part]) -> list[Part]:
    return [(f"{network}/{name}", call) for name, call in parts] if network else [*parts]


def _status(health: NodeHealth) -> list[Part]:
    async def status() -> Any:
        return {"command_line_version": version(), **status_document(health)}

    async def doctor() -> Any:
        return [each.document() for each in problems(health)]

    return [("status.json", status), ("doctor.json", doctor)]


_CALLS: Final[dict[str, tuple[Service, str, Any]]] = {
    "leases": ("lease", "ListLeases", lease.ListLeasesRequest()),
    "nodes": ("lease", "ListNodes", lease.ListNodesRequest()),
    "convergence": ("lease", "GetConvergence", lease.GetConvergenceRequest()),
    "quarantine": ("lease", "ListQuarantine", lease.ListQuarantineRequest()),
    "peers": ("dataplane", "ListPeers", dataplane.ListPeersRequest()),
    "plan-dataplane": ("dataplane", "ResyncKernel", dataplane.ResyncKernelRequest(dry_run=True)),
    "rules": ("masq", "ListRules", masq.ListRulesRequest()),
    "plan-masq": ("masq", "ResyncRules", masq.ResyncRulesRequest(dry_run=True)),
    "events-lease": ("lease", "WatchEvents", lease.WatchEventsRequest(no_follow=True)),
    "events-dataplane": ("dataplane", "WatchEvents", dataplane.WatchEventsRequest(no_follow=True)),
    "events-masq": ("masq", "WatchEvents", masq.WatchEventsRequest(no_follow=True)),
    "cloud": ("cloud", "GetStatus", cloud.GetStatusRequest()),
    "plan-cloud": ("cloud", "SyncRoutes", cloud.SyncRoutesRequest(dry_run=True)),
    "events-cloud": ("cloud", "WatchEvents", cloud.WatchEventsRequest(no_follow=True)),
}
"""Calls that change nothing, by the name of the file."""


def _answered_parts(targets: Targets) -> list[Part]:
    """One for each call. Keys and passwords in the network configuration are hidden, as with `-o json`."""

    def answer(service: Service, method: str, request: Any) -> Callable[[], Any]:
        async def call(channel: grpc.aio.Channel) -> Any:
            called = getattr(STUBS[service](channel), method)(request)
            if method == "WatchEvents":
                return [to_json(event) async for event in called]
            return to_json(await called)

        return lambda: ask(targets[service], call, LIST_SECONDS)

    return [(f"{name}.json", answer(*call)) for name, call in _CALLS.items() if call[0] in targets]


_COMMANDS: Final[Mapping[str, str]] = {
    "kernel/links": "ip -details -statistics link show",
    "kernel/addresses": "ip -details address show",
    "kernel/routes-ipv4": "ip -4 -details route show table all",
    "kernel/routes-ipv6": "ip -6 -details route show table all",
    "kernel/rules-ipv4": "ip -4 rule show",
    "kernel/rules-ipv6": "ip -6 rule show",
    "kernel/neighbours": "ip -statistics neighbour show",
    "kernel/fdb": "bridge -details fdb show",
    "kernel/fou": "ip fou show",
    "kernel/xfrm-policies": "ip xfrm policy show",
    "kernel/xfrm-states": "ip -statistics xfrm state list nokeys",
    "kernel/wireguard-endpoints": "wg show all endpoints",
    "kernel/wireguard-handshakes": "wg show all latest-handshakes",
    "kernel/wireguard-transfer": "wg show all transfer",
    "kernel/wireguard-allowed-ips": "wg show all allowed-ips",
    "kernel/udp-sockets": "ss -uanp",
    "firewall/nft": "nft list ruleset",
    "firewall/iptables": "iptables-save --counters --modprobe=/bin/true",
    "firewall/ip6tables": "ip6tables-save --counters --modprobe=/bin/true",
    "firewall/iptables-legacy": "iptables-legacy-save --counters --modprobe=/bin/true",
    "firewall/ip6tables-legacy": "ip6tables-legacy-save --counters --modprobe=/bin/true",
    "system/cni-names": "ls -l /etc/cni/net.d /opt/cni/bin",
    "system/uname": "uname -a",
    "system/clock": "timedatectl show",
    "system/units": "systemctl show flannelette-* --property=Id,ActiveState,SubState,Result,NRestarts,ExecMainStatus",
}
"""Commands by the name of the file. None prints a key: not `ip xfrm state` with them, `wg show` or `systemctl
status`.

Of CNI only names are listed: configurations of other plugins may have credentials. iptables-save loads no module,
which would bring a firewall that the host has not.
"""
_FILES: Final[Mapping[str, str]] = {
    "kernel/proc-devices": "/proc/net/dev",
    "kernel/proc-routes-ipv4": "/proc/net/fib_trie",
    "kernel/proc-routes-ipv6": "/proc/net/ipv6_route",
    "kernel/proc-neighbours": "/proc/net/arp",
    "kernel/counters-ip": "/proc/net/snmp",
    "kernel/counters-ipv6": "/proc/net/snmp6",
    "kernel/counters-more": "/proc/net/netstat",
    "kernel/counters-xfrm": "/proc/net/xfrm_stat",
    "kernel/softnet": "/proc/net/softnet_stat",
    "system/os-release": "/etc/os-release",
    "system/memory": "/proc/meminfo",
    "system/load": "/proc/loadavg",
    "system/modules": "/proc/modules",
}
"""Files of the kernel by their names in the archive. Those of /proc/net stand in for `ip`, which containers lack."""
_SYSCTLS: Final = (
    "net/ipv4/ip_forward net/ipv4/ip_no_pmtu_disc net/ipv4/conf/*/forwarding net/ipv4/conf/*/rp_filter "
    "net/ipv4/conf/*/accept_local net/ipv4/conf/*/arp_ignore net/ipv4/conf/*/disable_xfrm "
    "net/ipv4/conf/*/disable_policy net/ipv4/neigh/default/gc_thresh* net/ipv6/conf/*/forwarding "
    "net/ipv6/conf/*/disable_ipv6 net/ipv6/conf/*/accept_ra net/ipv6/neigh/default/gc_thresh* "
    "net/bridge/bridge-nf-call-* net/netfilter/nf_conntrack_count net/netfilter/nf_conntrack_max "
    "net/core/rmem_max net/core/netdev_max_backlog"
).split()
"""Patterns of paths below /proc/sys."""
_SETTINGS: Final = frozenset(" ".join(FLAGS.values()).split()) | {
    field.metadata["flag"] or field.name.replace("_", "-") for field in dataclasses.fields(ProcessSettings)
}
"""The flags of our services. Of a file, the path is shown, and the file is not read."""


def _host_parts() -> list[Part]:
    """Returns the parts that show this host."""
    return [
        *((f"{name}.txt", _printed(command.split())) for name, command in _COMMANDS.items()),
        *((f"{name}.txt", _in_thread(_read, Path(path))) for name, path in _FILES.items()),
        ("kernel/sysctls.txt", _in_thread(_sysctls)),
    ]


def _service_parts(targets: Targets, network: str) -> list[Part]:
    """Parts of the services that listen on sockets here, for the network of this name; empty: the only network."""
    return [
        ("system/subnet.env.txt", _in_thread(_subnet_file, targets, network)),
        *((f"settings-{each.service}.json", _in_thread(_shown_settings, each)) for each in targets.values()),
        *((f"metrics-{each.service}.txt", _metrics(each)) for each in targets.values()),
        *((f"logs/{each.service}.txt", _log(each)) for each in targets.values()),
    ]


def _printed(words: Sequence[str]) -> Callable[[], Any]:
    """What gives the output of a command, below the command."""

    async def collect() -> str:
        return f"$ {' '.join(words)}\n{(await output_of(words)).decode(errors='replace')}"

    return collect


def _in_thread(function: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
    async def collect() -> Any:
        return await asyncio.to_thread(function, *arguments)

    return collect


def _read(path: Path) -> str:
    """The text of a file, as much of it as a part may have. Raises Unavailable."""
    try:
        with path.open(errors="replace") as file:
            return file.read(MOST_BYTES)
    except OSError as error:
        raise Unavailable(f"cannot read {path}: {error.strerror}") from None


def _sysctls() -> str:
    root = Path("/proc/sys")
    lines = []
    for path in sorted({path for pattern in _SYSCTLS for path in root.glob(pattern)}):
        try:
            value = path.read_text().strip()
        except OSError as error:
            value = f"({error.strerror})"
        lines.append(f"{path.relative_to(root)} = {value}\n")
    return "".join(lines)


def _shown_settings(target: Target) -> dict[str, str]:
    found = _settings(target)
    return {name: _LEFT_OUT if _names_a_secret(name) else value for name, value in found.items()}


def _settings(target: Target) -> dict[str, str]:
    """Reads the settings of the process that listens at a socket here, from its flags and variables. Raises
    Unavailable.
    """
    process = process_of(target).process
    variables = dict(each.partition("=")[::2] for each in _strings(process / "environ"))
    found = {name: value for name in sorted(_SETTINGS) if (value := variables.get(variable_of(name)))}
    given = [(name, value) for name, value in _flags(_strings(process / "cmdline")) if name in _SETTINGS]
    return found | dict(given)


def _subnet_file(targets: Targets, network: str) -> str:
    """The file that --subnet-file of the dataplane names, as the dataplane sees it; else the default one.

    Raises Unavailable: also for a file that a dataplane which was taken over could name, or link to, but not read.
    """
    default, process, user = Path("/run/flannel/subnet.env"), Path("/proc/self"), 0
    settings = dict[str, str]()
    if dataplane := targets.get("dataplane"):
        with suppress(Unavailable):
            found = process_of(dataplane)
            if found.user in trusted_users("dataplane"):  # another could name a file that root alone can read
                process, user, settings = found.process, found.user, _settings(dataplane)
    named = Path(settings.get("subnet-file", default))
    file = NodeNetwork(network or settings.get("network", "").partition("=")[0]).place(named)
    path = process / ("root" if file.is_absolute() else "cwd") / str(file).lstrip("/")
    try:
        with open(path, errors="replace", opener=opened_itself) as opened:
            if user and named != default and os.fstat(opened.fileno()).st_uid != user:
                raise Unavailable(f"{file} is not the dataplane's")
            return opened.read(MOST_BYTES)
    except OSError as error:
        raise Unavailable(f"cannot read {file}: {error.strerror}") from None


def _strings(path: Path) -> list[str]:
    return [each for each in _read(path).split("\0") if each]


def _flags(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    ahead = [*words, "-"]
    for word, following in pairwise(ahead):
        name, has_value, value = word.lstrip("-").partition("=")
        if word.startswith("-"):
            yield name, value if has_value else "true" if following.startswith("-") else following


def _metrics(target: Target) -> Callable[[], Any]:
    async def collect() -> str:
        settings = await asyncio.to_thread(_settings, target)
        host, port = settings.get("healthz-ip", ""), settings.get("healthz-port", "0")
        if host.startswith("unix:"):
            opening = asyncio.open_unix_connection(host.removeprefix("unix:"))
        elif port.isdigit() and port != "0":
            loopback = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared
            opening = asyncio.open_connection(loopback.get(host, host), int(port))
        else:
            raise Unavailable("the service has no --healthz-port, at which it would serve metrics")
        async with asyncio.timeout(COMMAND_SECONDS):
            reader, writer = await opening
            writer.write(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")
            data = await up_to(reader, MOST_BYTES)
            writer.close()
        return data.partition(b"\r\n\r\n")[2].decode(errors="replace")

    return collect


def _writes_to(process: Path, descriptor: int) -> bool:
    """Whether the process has opened the file for writing."""
    told = dict(line.partition(":")[::2] for line in (process / f"fdinfo/{descriptor}").read_text().splitlines())
    flags = int(told.get("flags", "0"), 8)
    return flags & os.O_ACCMODE in (os.O_WRONLY, os.O_RDWR) and not flags & os.O_PATH


def _log(target: Target) -> Callable[[], Any]:
    """The file that the service's process writes its log to, else systemd's journal."""

    def written() -> str:
        try:
            process = process_of(target).process
            path = process / "fd/2"
            if not _writes_to(process, 2):  # not a file that root alone can read, and which it was made to point at
                return ""
            with path.open("rb") as file:
                if path.is_file():
                    file.seek(max(path.stat().st_size - MOST_BYTES, 0))
                    return file.read(MOST_BYTES).decode(errors="replace")
        except (Unavailable, OSError):
            pass
        return ""

    journal = f"journalctl --no-pager --quiet --output=short-iso --lines=5000 --unit={target.program}"

    async def collect() -> str:
        text = await asyncio.to_thread(written) or (await output_of(journal.split())).decode(errors="replace")
        if not text:
            raise Unavailable("the log is neither a file nor in the journal of this host")
        return text

    return collect


_MOST_BYTES_THERE: Final = 64 << 20
_CONTAINER: Final = "--container="


def _host_commands(node: str, targets: Targets) -> list[list[str]]:
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


async def _collect_there(commands: Sequence[Sequence[str]], seconds: float) -> list[Collected]:
    """What `flannelette sysdump --host-only` says there: secrets are taken out before anything leaves the host."""
    shown = await asyncio.gather(*(_shown_there(command, seconds) for command in commands))
    best = dict[str, Collected]()
    for each in (each for files in shown for each in files):
        if each.name not in best or (best[each.name].failure and not each.failure):
            best[each.name] = each
    if len(best) > 1:
        best.pop("host.txt", None)  # one container has answered
    logs = await _collect(_pod_logs(commands[0]), seconds)
    return [*best.values(), *(each for each in logs if not each.failure or "--previous" not in each.name)]


async def _shown_there(command: Sequence[str], seconds: float) -> list[Collected]:
    words = [*command, "sysdump", "--host-only", f"--timeout={seconds:g}", "--write=-"]
    try:
        return _files_of(await output_of(words, seconds + 10, _MOST_BYTES_THERE))
    except (Unavailable, tarfile.TarError, EOFError, OSError) as error:
        return [_failed("host.txt", str(error))]


def _is_of_a_pod(words: Sequence[str]) -> bool:
    """`kubectl ... exec --stdin POD --container=dataplane --`, as `kubernetes = true` makes it."""
    return "exec" in words and any(word.startswith(_CONTAINER) for word in words)


def _pod_logs(command: Sequence[str]) -> list[Part]:
    if not _is_of_a_pod(command):
        return []
    start = command.index("exec")
    kubectl = [*command[:start], "logs", command[start + 2], "--tail=5000"]

    return [
        (f"logs/pod-{name}{''.join(more)}.txt", _printed([*kubectl, f"{_CONTAINER}{name}", *more]))
        for name in SERVICES
        for more in ((), ("--previous",))
    ]


def _files_of(archive: bytes) -> list[Collected]:
    """The regular files of an archive that another host has made: bounded, and none outside of it."""
    found, size = [], 0
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
        for member in tar:
            name = "/".join(member.name.split("/")[2:])  # TOP/NODE/FILE; TOP/README is made anew
            if not member.isreg() or not name or ".." in name.split("/") or size > _MOST_BYTES_THERE:
                continue
            content = tar.extractfile(member)
            text = _without_secrets((content.read(MOST_BYTES) if content else b"").decode(errors="replace"))
            failure = text.removeprefix(_NOT_COLLECTED).strip() if text.startswith(_NOT_COLLECTED) else ""
            size += len(text)
            found.append(Collected(name, text.encode(errors="replace"), failure))
    return found


async def _collect(parts: Iterable[Part], seconds: float) -> list[Collected]:
    """All parts, each without secrets, after so many seconds at most."""
    turns = asyncio.Semaphore(_AT_ONCE)
    until = asyncio.get_running_loop().time() + seconds

    async def one(part: Part) -> Collected:
        name, call = part
        try:
            async with asyncio.timeout_at(until), turns:
                content = await call()
        except TimeoutError:
            return _failed(name, "not there within the time of --timeout")
        except (CallFailed, FlanneletteError, OSError) as error:
            return _failed(name, str(error))
        text = content if isinstance(content, str) else json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        shown = visible(_without_secrets(text), keeps="\n\t")
        return Collected(name, _cut(name, shown.encode(errors="replace")))

    return list(await asyncio.gather(*map(one, parts)))


def _failed(name: str, reason: str) -> Collected:
    """The file in the place of a part that could not be collected."""
    reason = visible(_without_secrets("; ".join(line.strip() for line in reason.splitlines())))
    return Collected(name, f"{_NOT_COLLECTED}{reason}\n".encode(errors="replace"), reason)


def _without_secrets(text: str) -> str:
    """The text without what looks like a secret: the second line of defence, for logs and what other programs print.

    Each key of 32 bytes, public ones too, becomes a digest: equal keys are still seen to be equal.
    """
    for pattern, instead in _PATTERNS:
        text = pattern.sub(instead, text)
    text = _NAMED.sub(lambda found: f"{found[1]}{found['quote'] or ''}{_LEFT_OUT}{found['quote'] or ''}", text)
    return _KEY.sub(lambda found: f"(key {sha256(found[0].encode()).hexdigest()[:8]})", text)


def _names_a_secret(name: str) -> bool:
    """Whether the name of a setting or a field says that its value is secret."""
    return bool(_NAME.search(name))


def _cut(name: str, data: bytes) -> bytes:
    if len(data) <= MOST_BYTES:
        return data
    note = f"(cut off: {len(data)} bytes)\n".encode()
    return note + data[-MOST_BYTES:] if name.startswith("logs/") else data[:MOST_BYTES] + b"\n" + note


_NAMES: Final = (
    r"username|passw(?:or)?d|passphrase|psk|secret|token|private[_-]?key|credential|accesskey|preshared[_-]?key"
)
_NAME: Final = re.compile(rf"(?i)(?:{_NAMES})")
_VALUE: Final = r"""(?P<quote>\\*["'])[^\n]*?(?<!\\)(?P=quote)|\\*["']?[^\s,;{}\[\]()"']+"""
"""A secret value with its quotes, which are escaped in a document in a document."""
_PATTERNS: Final = (
    (re.compile(r"-----BEGIN [^-\n]*-----.*?(?:-----END [^-\n]*-----|\Z)", re.DOTALL), _LEFT_OUT),
    (re.compile(r"(?<![\w-])eyJ[\w-]{6,}\.[\w-]{6,}\.[\w-]*"), _LEFT_OUT),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}"), rf"\1 {_LEFT_OUT}"),
    (re.compile(r"""://[^/\s@"'<>]+@"""), f"://{_LEFT_OUT}@"),
    (re.compile(rf"(?i)(?<!\S)(--?[\w-]{{0,40}}(?:{_NAMES})[\w-]{{0,40}}\s+)\S+"), rf"\1{_LEFT_OUT}"),
)
_NAMED: Final = re.compile(rf"""(?i)((?:{_NAMES})[\w-]{{0,40}}\\*["']?\s*[:=]\s*)(?:{_VALUE})""")
_KEY: Final = re.compile(r"(?<![A-Za-z0-9+/=])[A-Za-z0-9+/]{43}=(?![A-Za-z0-9+/=])|\b0x[0-9a-fA-F]{32,}\b")


def _packed(name: str, by_node: Mapping[str, Sequence[Collected]], now: datetime) -> bytes:
    """The archive, as tar.gz."""
    readme = _README.format(
        version=version(), time=now.isoformat(timespec="seconds"), left_out=fold(_SAID_OF_SECRETS, 80).plain
    )
    readme += lines(_missing(by_node, 80, named=1_000)).plain + "\n"
    files = {"README": readme.encode(errors="replace")}
    files |= {f"{node}/{each.name}": each.data for node in by_node for each in by_node[node]}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for file, data in files.items():
            member = tarfile.TarInfo(f"{name}/{file}")
            member.size, member.mode, member.mtime = len(data), 0o600, int(now.timestamp())
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def _bounded(by_node: Mapping[str, Sequence[Collected]]) -> dict[str, list[Collected]]:
    """What fits into the archive; files beyond say that they do not."""
    sizes = accumulate(len(each.data) for files in by_node.values() for each in files)
    return {
        node: [
            each if next(sizes) <= _MOST_BYTES_OF_ALL else _failed(each.name, "the archive is full") for each in files
        ]
        for node, files in by_node.items()
    }


def _new_file(path: Path) -> Path:
    """Made now, so that a file that cannot be written is told before anything is collected."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError as error:
        raise Misconfigured(f"cannot write {path}: {error.strerror}; give --write FILE, a new one") from None
    return path


def _summary(path: Path | None, size: int, by_node: Mapping[str, Sequence[Collected]], width: Width) -> Text:
    there = sum(not each.failure for files in by_node.values() for each in files)
    head = f"{path or 'standard output'}: {count(there, 'file')} of {count(len(by_node), 'node')}, {size:,} bytes"
    end = f"Look before you publish it: tar xzf {path or 'FILE'}; README says what is where."
    return lines(fold(each, width, 2) for each in (head, *_missing(by_node, width, named=3), _SAID_OF_SECRETS, end))


def _missing(by_node: Mapping[str, Sequence[Collected]], width: Width, named: int) -> list[str | Text]:
    """What could not be collected, by the reason; so many of the parts that share one are named."""
    by_reason = dict[str, dict[str, list[str]]]()
    for node, files in by_node.items():
        for each in files:
            if each.failure:
                by_reason.setdefault(each.failure, {}).setdefault(each.name, []).append(node)
    rows: list[str | Text] = ["Not collected:"] if by_reason else []
    for reason, names in by_reason.items():
        parts = [name if len(of) == len(by_node) else f"{name} of {shown_nodes(of)}" for name, of in names.items()]
        more = f" and {len(parts) - named} more" if len(parts) > named else ""
        rows.append(fold(f"  {', '.join(parts[:named])}{more}: {reason}", width, 4))
    return rows
