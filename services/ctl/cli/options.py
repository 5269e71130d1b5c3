"""Parts of the command line that commands share: options, argument types, confirmation, and the list in the help."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    from flannelette.services.ctl.render.screen import Screen

F = TypeVar("F", bound=Callable[..., Any])

SECTIONS: Final[Mapping[str, Sequence[str]]] = {
    "Inspect": ("status", "nodes", "peers", "leases", "rules", "topology", "reservations", "quarantine"),
    "Diagnose": ("doctor", "connectivity", "trace", "explain", "diff", "capture", "sysdump"),
    "Follow": ("top", "events", "watch", "wait"),
    "Change the kernel": ("resync", "handover", "teardown", "masq", "cloud"),
    "Change leases and subnets": ("reserve", "unreserve", "release", "reclaim", "renumber", "confirm-removal"),
    "Set up": ("context", "certs", "flanneld", "docker-opts", "dial-stdio", "version"),
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
    "events": (
        "flannelette events --since 10m",
        "flannelette events h2 --service dataplane",
        "flannelette events -f",
    ),
    "wait": ("flannelette wait --ready --timeout 120", "flannelette wait --converged"),
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


def node_file(name: str) -> Path:
    """Path of one of `NODE_FILES` on this node: from its variable, such as FLANNELD_SUBNET_FILE, or the default."""
    return Path(os.environ.get(f"FLANNELD_{name}") or NODE_FILES[name])


class Sections(click.Group):
    """A group whose help lists its commands by SECTIONS, each in one line."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See click."""
        room = formatter.width - 6 - max(map(len, self.commands))
        for title, names in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(room)) for name in names])


class OwnFirst(click.Command):
    """A command whose help has its own options before those of every command."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See click."""
        shared = {field.name for field in fields(Shared)}
        for title, is_shared in (("Options", False), ("Options of every command", True)):
            options = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]
            some = [each for each in options if (each.name in shared) is is_shared]
            with formatter.section(title):
                formatter.write_dl([record for each in some if (record := each.get_help_record(ctx))])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See click."""
        is_of_group = ctx.parent is not None and ctx.parent.parent is not None
        if examples := () if is_of_group else EXAMPLES.get(self.name or "", ()):
            with formatter.section("Examples"):
                formatter.write_text("\b\n" + "\n".join(examples))


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
    """A duration with a unit, such as `12h`."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Returns the duration in seconds."""
        from flannelette.services.ctl.commands.subnets import read_duration

        try:
            return read_duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


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
