"""Parts of the command line that commands share: options, argument types, confirmation, and the list in the help."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    from services.ctl.render.screen import Screen

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_SOCKET_DIR: Final = Path("/run/flannelette")

SECTIONS: Final[Mapping[str, Sequence[str]]] = {
    "State": ("status", "doctor", "leases", "nodes", "peers", "rules", "quarantine", "reservations"),
    "Diagnosis": ("diff", "events", "explain"),
    "Follow and wait": ("watch", "wait"),
    "Changes to the kernel": ("resync", "handover", "teardown", "masq"),
    "Changes to leases and subnets": ("reserve", "unreserve", "release", "reclaim", "renumber", "confirm-removal"),
    "On a host": ("flanneld", "docker-opts", "certs", "version"),
}


class Sections(click.Group):
    """A group whose help lists its commands by SECTIONS, each in one line."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See click."""
        room = formatter.width - 6 - max(map(len, self.commands))
        for title, names in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(room)) for name in names])


class Address(click.ParamType[str]):
    """`unix:PATH`, a path, or HOST:PORT."""

    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The address as gRPC wants it."""
        from services.ctl.connect.targets import read_address

        try:
            return read_address(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Duration(click.ParamType[float]):
    """A duration, `12h`."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """In seconds."""
        from services.ctl.commands.subnets import read_duration

        try:
            return read_duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """The values of the shared options; None: not given."""

    socket_dir: Path | None = None
    lease: str | None = None
    dataplane: str | None = None
    masq: str | None = None
    tls_cert_file: str | None = None
    tls_key_file: str | None = None
    tls_ca_file: str | None = None
    tls_server_name: str | None = None
    output: str | None = None

    @property
    def tls(self) -> tuple[str, str, str, str]:
        """Certificate, key, authorities and server name, empty where not given."""
        return (
            self.tls_cert_file or "",
            self.tls_key_file or "",
            self.tls_ca_file or "",
            self.tls_server_name or "",
        )

    def overridden_by(self, other: "Shared") -> "Shared":
        """The values after replacement by those given behind the command's name."""
        return Shared(
            **{f.name: getattr(self if getattr(other, f.name) is None else other, f.name) for f in fields(self)}
        )


def shared_options(*, environment: bool) -> Callable[[F], F]:
    """Adds the shared options to a command. Only those of the outermost group may read the environment."""

    def variable(name: str) -> str | None:
        return f"FLANNELETTE_{name}" if environment else None

    options = [
        click.option(
            "--socket-dir",
            type=click.Path(path_type=Path, readable=False),
            envvar=variable("SOCKET_DIR"),
            help=f"Directory of the services' sockets.  [default: {DEFAULT_SOCKET_DIR}]",
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
        click.option("-o", "--output", type=click.Choice(["table", "json"]), help="Output format.  [default: table]"),
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
