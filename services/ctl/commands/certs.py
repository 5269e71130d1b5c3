"""`flannelette certs`: certificates for a lab. Who has an authority already needs only the URIs of core/access.py."""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from secrets import token_hex
from typing import Any, Final, TypeVar

import click

from flannelette.services.core.access import Principal, Role
from flannelette.services.ctl.certificates import (
    AUTHORITY,
    CertificateRequest,
    Unusable,
    authority_in,
    issue,
    keep,
    make_authority,
    require_free,
)
from flannelette.services.ctl.options import Duration, fail

F = TypeVar("F", bound=Callable[..., Any])

_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?", re.ASCII)
_AGAIN: Final = "Next, copy them over the old files: services read new ones without a restart."
_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,62}\.?)*", re.ASCII)


class Name(click.ParamType[str]):
    """The name of a node, a server or a person."""

    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name as it is."""
        if not _NAME.fullmatch(value):
            self.fail(f"{value!r} is not a valid name: use letters, digits, dots, dashes and underscores", param, ctx)
        return str(value)


class HostParam(click.ParamType[str]):
    """A host name or an IP address."""

    name = "host"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The host as it is."""
        try:
            return str(ip_address(value))
        except ValueError:
            if _HOST.fullmatch(value) and not value.replace(".", "").isdigit():
                return str(value)
            self.fail(f"{value!r} is neither a host name nor an IP address; leave the port out", param, ctx)


_DAY: Final = 86_400.0
_directory = click.argument("directory", type=click.Path(path_type=Path, file_okay=False), metavar="DIR")
_force = click.option("--force", is_flag=True, help="Replace existing files.")


def _days(default: int) -> Callable[[F], F]:
    return click.option(
        "--days",
        "seconds",
        type=Duration(plain=_DAY, least=_DAY),
        default=default * _DAY,
        metavar="DURATION",
        help=f"How long the certificate is valid: 90d; a number is of days.  [default: {default}d]",
    )


def _addresses(meaning: str, *, required: bool = False) -> Callable[[F], F]:
    return click.option(
        "--address", "addresses", type=HostParam(), multiple=True, required=required, metavar="HOST", help=meaning
    )


@click.group(name="certs")
def certs() -> None:
    """Make certificates for TLS, for a lab.

    First an authority, then one certificate for each who takes part. All files
    are kept in DIR, which stays where you are: give each service its own
    certificate and key, and ca.crt, but never ca.key.
    """


@certs.command()
@_directory
@_days(3650)
@_force
def ca(directory: Path, seconds: float, force: bool) -> None:
    """Make an authority: DIR/ca.crt and DIR/ca.key.

    --force makes another one in its place; certificates of the old one are then
    refused.
    """
    try:
        require_free(directory, [AUTHORITY], force=force)
        made = make_authority(f"flannelette lab authority {token_hex(2)}", _now(), seconds / _DAY)
        keep(directory, {AUTHORITY: made})
    except Unusable as error:
        fail(str(error))
    click.echo(
        f"{directory}/ca.crt  the authority, until {made.not_after:%Y-%m-%d}: --tls-ca-file of all services\n"
        f"{directory}/ca.key  its key: it can sign a certificate for any identity\n\n"
        "Next, a certificate for the lease service, for each name and address that clients use:\n"
        f"  flannelette certs server lease {directory} --address 192.0.2.1"
    )


@certs.command()
@click.argument("name", type=Name())
@_directory
@_addresses("Where clients reach services of this node, if they serve TCP; may be repeated.")
@_days(365)
@_force
def node(name: str, directory: Path, addresses: tuple[str, ...], seconds: float, force: bool) -> None:
    """Make one certificate each for the dataplane and masq of node NAME.

    NAME is the value of the node's --node: by default its host name in lower case.
    """
    wanted = {
        f"{name}-{role.value}": _bearer(f"{name} {role.value}", Principal(role, name), addresses)
        for role in (Role.DATAPLANE, Role.MASQ)
    }
    text = f"Next, on {name}, with the address of the lease service:"
    for role in (Role.DATAPLANE, Role.MASQ):
        text += f"\n  flannelette-{role.value} --lease-address 192.0.2.1:7070 \\\n"
        text += _flags(directory, f"{name}-{role.value}")
    _make(directory, wanted, seconds, text, force=force)


@certs.command()
@click.argument("name", type=Name())
@_directory
@_addresses("A name or an address that clients connect to; may be repeated.", required=True)
@click.option(
    "--relay", is_flag=True, help="Allow the lease service to act for any node at another lease service (a relay)."
)
@_days(365)
@_force
def server(name: str, directory: Path, addresses: tuple[str, ...], relay: bool, seconds: float, force: bool) -> None:
    """Make a certificate for the lease service NAME."""
    wanted = _server(name, addresses, relay=relay)
    text = (
        "Next, on the host of the lease service:\n"
        "  flannelette-lease --listen unix:/run/flannelette-lease/lease.sock,0.0.0.0:7070 \\\n"
        f"{_flags(directory, f'{name}-server')}\n"
        "and a certificate for every node and for yourself:\n"
        f"  flannelette certs node h1 {directory}\n  flannelette certs admin $USER {directory}"
    )
    _make(directory, {f"{name}-server": wanted}, seconds, text, force=force)


@certs.command()
@click.argument("name", type=Name())
@_directory
@_days(365)
@_force
def cluster(name: str, directory: Path, seconds: float, force: bool) -> None:
    """Make a certificate for another cluster's lease services.

    NAME is that of the other cluster. With the certificate its lease services
    import leases from this cluster, and may do nothing else.
    """
    stem = f"{name}-cluster"
    text = (
        "Next, give these two files and ca.crt to the other cluster, for its lease services:\n"
        f"  --import THIS-CLUSTER=192.0.2.1:7070,allow=10.5.0.0/16,cert={stem}.crt,key={stem}.key,ca=ca.crt"
    )
    _make(
        directory, {stem: _bearer(f"{name} cluster", Principal(Role.CLUSTER, name), ())}, seconds, text, force=force
    )


@certs.command()
@click.argument("name", type=Name())
@_directory
@_days(365)
@_force
def admin(name: str, directory: Path, seconds: float, force: bool) -> None:
    """Make a certificate for the administrator NAME."""
    stem = f"{name}-admin"
    path = directory.absolute()
    text = (
        "Next:\n"
        f"  flannelette --lease 192.0.2.1:7070 \\\n{_flags(directory, stem)} leases\n"
        f"  grpcurl -cacert {path}/ca.crt -cert {path}/{stem}.crt -key {path}/{stem}.key 192.0.2.1:7070 list"
    )
    _make(directory, {stem: _bearer(f"{name} admin", Principal(Role.ADMIN, name), ())}, seconds, text, force=force)


def _bearer(name: str, principal: Principal, addresses: tuple[str, ...]) -> CertificateRequest:
    return CertificateRequest(name, (principal.uri,), addresses)


def _server(name: str, addresses: tuple[str, ...], *, relay: bool) -> CertificateRequest:
    return CertificateRequest(f"{name} server", (Principal(Role.RELAY, name).uri,) if relay else (), addresses)


def _make(directory: Path, wanted: dict[str, CertificateRequest], seconds: float, text: str, *, force: bool) -> None:
    """Makes all of them or none, and says what; `text` is what to do with them if they are the first ones."""
    try:
        authority = authority_in(directory)
        are_first = require_free(directory, wanted, force=force)
        made = {stem: issue(authority, one, _now(), seconds / _DAY) for stem, one in wanted.items()}
        keep(directory, made)
    except Unusable as error:
        fail(str(error))
    for stem, one in wanted.items():
        what = " ".join([*one.uris, *one.addresses])
        click.echo(f"{directory}/{stem}.crt and .key  {what}, until {made[stem].not_after:%Y-%m-%d}")
    click.echo(f"\n{text if are_first else _AGAIN}")


def _flags(directory: Path, stem: str) -> str:
    path = directory.absolute()
    return (
        f"    --tls-cert-file {path}/{stem}.crt --tls-key-file {path}/{stem}.key \\\n    --tls-ca-file {path}/ca.crt"
    )


def _now() -> datetime:
    return datetime.now(UTC)
