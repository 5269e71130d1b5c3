"""What this host shows of itself, as parts of a dump: kernel objects, firewall, sysctls, logs, settings, metrics."""

import asyncio
import dataclasses
import os
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from flannelette.services.core.errors import Unavailable
from flannelette.services.ctl.connect.dial import environment_there
from flannelette.services.ctl.connect.targets import Target, Targets
from flannelette.services.ctl.diagnose.dump.parts import LEFT_OUT, MOST_BYTES, Part, names_a_secret
from flannelette.services.ctl.diagnose.fixes import process_of, trusted_users
from flannelette.services.runtime.process.networks import NodeNetwork
from flannelette.services.runtime.process.options import ProcessSettings
from flannelette.services.runtime.process.settings import FLAGS, variable_of

_SECONDS: Final = 10.0
"""For one command."""
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
"""By the name of the file. None prints a key: not `ip xfrm state` with them, `wg show` or `systemctl status`.

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
"""Those of /proc/net stand in for `ip`, which containers lack."""
_SYSCTLS: Final = (
    "net/ipv4/ip_forward net/ipv4/ip_no_pmtu_disc net/ipv4/conf/*/forwarding net/ipv4/conf/*/rp_filter "
    "net/ipv4/conf/*/accept_local net/ipv4/conf/*/arp_ignore net/ipv4/conf/*/disable_xfrm "
    "net/ipv4/conf/*/disable_policy net/ipv4/neigh/default/gc_thresh* net/ipv6/conf/*/forwarding "
    "net/ipv6/conf/*/disable_ipv6 net/ipv6/conf/*/accept_ra net/ipv6/neigh/default/gc_thresh* "
    "net/bridge/bridge-nf-call-* net/netfilter/nf_conntrack_count net/netfilter/nf_conntrack_max "
    "net/core/rmem_max net/core/netdev_max_backlog"
).split()
"""Below /proc/sys."""
_SETTINGS: Final = frozenset(" ".join(FLAGS.values()).split()) | {
    field.metadata["flag"] or field.name.replace("_", "-") for field in dataclasses.fields(ProcessSettings)
}
"""The flags of our services. Of a file, the path is shown, and the file is not read."""


def host_parts() -> list[Part]:
    """Returns the parts that show this host."""
    return [
        *(Part(f"{name}.txt", printed(command.split())) for name, command in _COMMANDS.items()),
        *(Part(f"{name}.txt", _in_thread(_read, Path(path))) for name, path in _FILES.items()),
        Part("kernel/sysctls.txt", _in_thread(_sysctls)),
    ]


def service_parts(targets: Targets, network: str) -> list[Part]:
    """Parts of the services that listen on sockets here, for the network of this name; empty: the only network."""
    return [
        Part("system/subnet.env.txt", _in_thread(_subnet_file, targets, network)),
        *(Part(f"settings-{each.service}.json", _in_thread(_shown_settings, each)) for each in targets.values()),
        *(Part(f"metrics-{each.service}.txt", _metrics(each)) for each in targets.values()),
        *(Part(f"logs/{each.service}.txt", _log(each)) for each in targets.values()),
    ]


async def output_of(words: Sequence[str], seconds: float = _SECONDS, most: int = MOST_BYTES) -> bytes:
    """What a command prints, at most so many bytes. Raises Unavailable, with the reason."""
    environment = {**environment_there(), "LC_ALL": "C", "WG_HIDE_KEYS": "always"}
    environment["PATH"] = f"{environment.get('PATH', '/usr/bin:/bin')}:/usr/sbin:/sbin"  # a user's may lack these
    try:
        process = await asyncio.create_subprocess_exec(
            *words, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, env=environment
        )
    except OSError as error:
        raise Unavailable(f"cannot run {words[0]}: {error.strerror}") from None
    assert process.stdout is not None  # noqa: S101 - for the type checker
    assert process.stderr is not None  # noqa: S101
    try:
        async with asyncio.timeout(seconds):
            complaint, data = await asyncio.gather(process.stderr.read(1 << 16), _up_to(process.stdout, most))
            code = 0 if len(data) >= most else await process.wait()
    except TimeoutError:
        raise Unavailable(f"`{' '.join(words)}` did not end within {seconds:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if code and not data:
        raise Unavailable(complaint.decode(errors="replace").strip() or f"`{' '.join(words)}`: exit code {code}")
    return data


async def _up_to(stream: asyncio.StreamReader, most: int) -> bytes:
    data = bytearray()
    while len(data) < most and (chunk := await stream.read(min(1 << 16, most - len(data)))):
        data += chunk
    return bytes(data)


def printed(words: Sequence[str]) -> Callable[[], Any]:
    """What gives the output of a command, below the command."""

    async def collect() -> str:
        return f"$ {' '.join(words)}\n{(await output_of(words)).decode(errors='replace')}"

    return collect


def _in_thread(function: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
    async def collect() -> Any:
        return await asyncio.to_thread(function, *arguments)

    return collect


def _read(path: Path) -> str:
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
    return {name: LEFT_OUT if names_a_secret(name) else value for name, value in found.items()}


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
    """The file that --subnet-file of the dataplane names, as the dataplane sees it; else the default one."""
    default, process, settings = "/run/flannel/subnet.env", Path("/proc/self"), dict[str, str]()
    if dataplane := targets.get("dataplane"):
        with suppress(Unavailable):
            found = process_of(dataplane)
            if found.user in trusted_users("dataplane"):  # another could name a file that root alone can read
                process, settings = found.process, _settings(dataplane)
    named = Path(settings.get("subnet-file", default))
    file = NodeNetwork(network or settings.get("network", "").partition("=")[0]).place(named)
    return _read(process / ("root" if file.is_absolute() else "cwd") / str(file).lstrip("/"))


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
        async with asyncio.timeout(_SECONDS):
            reader, writer = await opening
            writer.write(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")
            data = await _up_to(reader, MOST_BYTES)
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
