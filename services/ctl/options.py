"""The options that every command understands, before or behind its name."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_SOCKET_DIR: Final = Path("/run/flannelette")


class Address(click.ParamType[str]):
    """`unix:PATH`, a path, or HOST:PORT."""

    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The address as gRPC wants it."""
        from services.ctl.targets import read_address

        try:
            return read_address(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Their values; None where not given."""

    socket_dir: Path | None = None
    lease: str | None = None
    dataplane: str | None = None
    masq: str | None = None
    tls_cert_file: str | None = None
    tls_key_file: str | None = None
    tls_ca_file: str | None = None
    tls_server_name: str | None = None
    output: str | None = None

    def overridden_by(self, other: "Shared") -> "Shared":
        """What stands behind the command's name wins."""
        return Shared(
            **{f.name: getattr(self if getattr(other, f.name) is None else other, f.name) for f in fields(self)}
        )


def shared_options(*, environment: bool) -> Callable[[F], F]:
    """Adds them to a command. Only one place may read the environment: the outermost."""

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
            help="Who signs the services' certificates.",
        ),
        click.option(
            "--tls-server-name",
            metavar="NAME",
            envvar=variable("TLS_SERVER_NAME"),
            help="The name in them.  [default: host of the address]",
        ),
        click.option("-o", "--output", type=click.Choice(["table", "json"]), help="How to print.  [default: table]"),
    ]

    def add(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return add
