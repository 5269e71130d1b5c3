"""Parts of the command line that commands share: options, argument types, confirmation, and the list in the help."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from ipaddress import ip_address
from math import isinf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from flannelette.services.ctl.cli.durations import LONGEST, read_duration, write_duration

if TYPE_CHECKING:
    from flannelette.services.ctl.render.screen import Screen

F = TypeVar("F", bound=Callable[..., Any])

SECTIONS: Final[Mapping[str, Sequence[str]]] = {
    "Inspect": ("status", "nodes", "peers", "leases", "rules", "topology", "reservations", "quarantine"),
    "Diagnose": ("doctor", "connectivity", "trace", "explain", "diff", "capture", "sysdump", "call"),
    "Follow": ("top", "events", "watch", "wait"),
    "Change the kernel": ("resync", "handover", "teardown", "masq", "cloud"),
    "Change leases and subnets": ("reserve", "unreserve", "release", "reclaim", "renumber", "confirm-removal"),
    "Set up": ("context", "certs", "flanneld", "docker-opts", "dial-stdio", "help", "version"),
}


EXAMPLES: Final[Mapping[str, Sequence[str]]] = {
    "status": (
        "flannelette status",
        "flannelette status --on h2",
        "flannelette status -o wide",
        "flannelette status -w",
    ),
    "peers": ("flannelette peers", "flannelette peers h2"),
    "topology": ("flannelette topology", "flannelette topology -o svg > cluster.svg"),
    "doctor": ("flannelette doctor", "flannelette doctor --all", "sudo flannelette doctor --fix"),
    "connectivity": (
        "flannelette connectivity",
        "flannelette connectivity --outside 198.51.100.1",
        "flannelette connectivity -o junit > connectivity.xml",
    ),
    "trace": ("flannelette trace h1 h2", "flannelette trace 10.5.1.2 10.5.2.2 --return"),
    "explain": ("flannelette explain pod 198.51.100.1", "flannelette explain 10.5.1.2 10.5.2.2 --mark 0x4000"),
    "capture": (
        "flannelette capture --peer h2 -w h2.pcapng",
        "flannelette capture --peer h2 -w - | tcpdump -n -r -",
    ),
    "call": (
        "flannelette call dataplane",
        "flannelette call dataplane ListPeers --describe",
        """flannelette call dataplane ListPeers '{"name": "h2", "look": true}'""",
    ),
    "events": (
        "flannelette events --since 10m",
        "flannelette events h2 --service dataplane",
        "flannelette events -f",
    ),
    "wait": ("flannelette wait --ready --timeout 2m", "flannelette wait --converged"),
    "reserve": ("flannelette reserve 10.5.7.0/24 --node h9",),
    "reclaim": ("flannelette reclaim --unseen-for 2d --dry-run", "flannelette reclaim 10.5.7.0-24"),
}
"""By command, for help and man page."""

NODE_FILES: Final[Mapping[str, str]] = {
    "SUBNET_FILE": "/run/flannel/subnet.env",
    "STATE_DIR": "/var/lib/flannelette",
}
"""Files of a node's services, by their variables, and where they are by default."""

FORMATS: Final = ("table", "wide", "json", "yaml")
_ELSEWHERE: Final = "Options of every command (--on, -o, ...): `flannelette help options`"


def node_file(name: str) -> Path:
    """Path of one of `NODE_FILES` on this node: from its variable, such as FLANNELD_SUBNET_FILE, or the default."""
    return Path(os.environ.get(f"FLANNELD_{name}") or NODE_FILES[name])


class Sections(click.Group):
    """A group whose help lists its commands by SECTIONS, each in one line."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See click."""
        write_options(self, ctx, formatter, shared=False)
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See click."""
        room = formatter.width - 6 - max(map(len, self.commands))
        for title, names in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(room)) for name in names])


class OwnOnly(click.Command):
    """A command whose help has its own options, and says where those of every command are."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See click."""
        write_options(self, ctx, formatter, shared=False)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See click."""
        is_of_group = ctx.parent is not None and ctx.parent.parent is not None
        if examples := () if is_of_group else EXAMPLES.get(self.name or "", ()):
            with formatter.section("Examples"):
                formatter.write_text("\b\n" + "\n".join(examples))


def write_options(
    command: click.Command, ctx: click.Context, formatter: click.HelpFormatter, *, shared: bool
) -> None:
    """Writes the options that every command has, or the other ones of a command and where those are."""
    names = {field.name for field in fields(Shared)}
    listed = [each for each in command.get_params(ctx) if isinstance(each, click.Option)]
    some = [each for each in listed if (each.name in names) is shared or (each.name == "output" and _is_own(each))]
    with formatter.section("Options of every command" if shared else "Options"):
        formatter.write_dl([record for each in some if (record := each.get_help_record(ctx))])
    if not shared:
        formatter.write_paragraph()
        formatter.write_text(_ELSEWHERE)


def _is_own(output: click.Option) -> bool:
    return isinstance(output.type, click.Choice) and tuple(output.type.choices) != FORMATS


class Address(click.ParamType[str]):
    """`unix:PATH`, a path, or HOST:PORT."""

    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The address as gRPC wants it."""
        from flannelette.services.ctl.connect.targets import read_address

        try:
            return read_address(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class IpAddress(click.ParamType[str]):
    """An IP address, as text."""

    name = "ip"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Checks the text of an address, and returns it as it is."""
        try:
            ip_address(value)
        except ValueError:
            self.fail(f"{value!r} is not an IP address: write one like 10.5.1.2 or fd00::2", param, ctx)
        return str(value)


class Duration(click.ParamType[float]):
    """A duration such as `12h` or `1m30s`, in seconds; where `plain` is given, also a number of that many seconds."""

    name = "duration"

    def __init__(self, *, plain: float = 0, least: float = 0, most: float = LONGEST) -> None:
        self._plain, self._least, self._most = plain, least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Returns the duration in seconds."""
        if isinstance(value, int | float):  # the default
            return float(value)
        try:
            seconds = read_duration(value, self._plain)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if not self._least <= seconds <= self._most:
            most = "" if isinf(self._most) else f", and at most {write_duration(self._most)}"
            self.fail(f"write at least {write_duration(self._least)}{most}, and not {value!r}", param, ctx)
        return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """The values of the shared options; None: not given."""

    context: str | None = None
    on: str | None = None
    network: str | None = None
    socket_dir: str | None = None
    lease: str | None = None
    dataplane: str | None = None
    masq: str | None = None
    tls_cert_file: str | None = None
    tls_key_file: str | None = None
    tls_ca_file: str | None = None
    tls_server_name: str | None = None
    output: str | None = None

    def overridden_by(self, other: "Shared") -> "Shared":
        """The values after replacement by those given after the command's name."""
        return Shared(
            **{f.name: getattr(self if getattr(other, f.name) is None else other, f.name) for f in fields(self)}
        )


watched: Final = click.option("-w", "--watch", is_flag=True, help="Show every change, until Ctrl-C.")


def for_any_node(function: F) -> F:
    """Marks a command whose answer is the same from every node of a context: it asks the first one."""
    function.scope = "any"  # type: ignore[attr-defined]
    return function


def for_every_node(function: F) -> F:
    """Marks a command about all nodes of a context, or the one that `--on` names: its first parameter is Nodes."""
    function.scope = "every"  # type: ignore[attr-defined]
    return function


def in_each_network(function: F) -> F:
    """Marks a command that is carried out for one network after the other, where none of several is named."""
    function.each_network = True  # type: ignore[attr-defined]
    return function


def prints(*formats: str) -> Callable[[F], F]:
    """Marks a command with formats of its own for `-o`, the default first; it gets the format as `output`."""

    def mark(function: F) -> F:
        function.formats = formats  # type: ignore[attr-defined]
        return function

    return mark


def _contexts(_context: click.Context, _parameter: click.Parameter, typed: str) -> list[str]:
    """What a shell proposes; nothing where the file cannot be read."""
    from flannelette.services.ctl.cli.nodes import known_contexts

    return [name for name in known_contexts() if name.startswith(typed)]


def _nodes(context: click.Context, _parameter: click.Parameter, typed: str) -> list[str]:
    from flannelette.services.ctl.cli.nodes import known_contexts

    chosen = next(
        (each.params["context"] for each in (context, context.parent) if each and each.params.get("context")), ""
    )
    return [name for name in known_contexts().get(chosen, ()) if name.startswith(typed)]


def shared_options(*, environment: bool, formats: Sequence[str] = FORMATS) -> Callable[[F], F]:
    """Adds the shared options to a command. Only those of the outermost group may read the environment."""

    def variable(name: str) -> str | None:
        return f"FLANNELETTE_{name}" if environment else None

    options = [
        click.option(
            "--context",
            metavar="NAME",
            envvar=variable("CONTEXT"),
            help="A cluster of the contexts file.",
            shell_complete=_contexts,
        ),
        click.option(
            "--on", metavar="NODE", envvar=variable("ON"), help="A node of the context.", shell_complete=_nodes
        ),
        click.option(
            "--network", metavar="NAME", envvar=variable("NETWORK"), help="A network of the node, if it has several."
        ),
        click.option(
            "--socket-dir",
            metavar="PATH",
            envvar=variable("SOCKET_DIR"),
            help="Directory of the services' sockets.  [default: /run/flannelette]",
        ),
        click.option("--lease", type=Address(), envvar=variable("LEASE"), help="Address of the lease service."),
        click.option("--dataplane", type=Address(), envvar=variable("DATAPLANE"), help="Address of the dataplane."),
        click.option("--masq", type=Address(), envvar=variable("MASQ"), help="Address of masq."),
        click.option(
            "--tls-cert-file",
            metavar="FILE",
            envvar=variable("TLS_CERT_FILE"),
            help="Your certificate, for TCP with TLS.",
        ),
        click.option("--tls-key-file", metavar="FILE", envvar=variable("TLS_KEY_FILE"), help="Its key."),
        click.option(
            "--tls-ca-file",
            metavar="FILE",
            envvar=variable("TLS_CA_FILE"),
            help="Authorities of the services' certificates.",
        ),
        click.option(
            "--tls-server-name",
            metavar="NAME",
            envvar=variable("TLS_SERVER_NAME"),
            help="Name in the services' certificates.  [default: host of the address]",
        ),
        click.option("-o", "--output", type=click.Choice(formats), help=f"Output format.  [default: {formats[0]}]"),
    ]

    def add(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return add


def require_terminal(screen: "Screen", instead: str = "--yes") -> None:
    """Raises UsageError, with the option to give instead, if standard input is not a terminal."""
    if screen.json or not sys.stdin.isatty():
        raise click.UsageError(f"there is no terminal to ask on: give {instead}")
