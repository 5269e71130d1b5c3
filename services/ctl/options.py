"""Options, their types, and the help of commands: what is imported before it is known which command is meant."""

import math
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import click

from flannelette.services.core.formats.text import visible

_UNITS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400}
_PART: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h|d)", re.ASCII)
_WHOLE: Final = re.compile(f"(?:{_PART.pattern})+", re.ASCII)
LONGEST: Final = 36_500.0 * 86_400
"""A hundred years, in seconds."""


def read_duration(text: str, plain: float = 0) -> float:
    """Returns the seconds; a number without a unit counts `plain` seconds each, and is refused where that is 0.

    Raises ValueError, saying what to write.
    """
    if _WHOLE.fullmatch(text):
        return math.fsum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
    try:
        seconds = float(text) * plain if plain else math.nan
    except ValueError:
        seconds = math.nan
    if math.isnan(seconds):
        raise ValueError(f"{text!r} is not a duration: write 90s, 1m30s, 12h or 2d")
    return seconds


def write_duration(seconds: float) -> str:
    """Returns the duration in its largest whole unit: `1h`, `90s`."""
    thousandths = {unit: round(size * 1000) for unit, size in _UNITS.items()}
    whole = [unit for unit, size in thousandths.items() if seconds and not round(seconds * 1000) % size]
    unit = whole[-1] if whole else "s"
    return f"{seconds / _UNITS[unit]:g}{unit}"


F = TypeVar("F", bound=Callable[..., Any])

NODE_FILES: Final[Mapping[str, str]] = {
    "SUBNET_FILE": "/run/flannel/subnet.env",
    "STATE_DIR": "/var/lib/flannelette",
    "CNI_STATE_DIR": "/var/lib/cni",
}
"""Files of a node's services, by their variables, and where they are by default."""

FORMATS: Final = ("table", "wide", "json", "yaml")
_ELSEWHERE: Final = "Options of every command (--on, -o, ...): `flannelette help options`"


def node_file(name: str) -> Path:
    """Path of one of `NODE_FILES` on this node: from its variable, such as FLANNELD_SUBNET_FILE, or the default."""
    return Path(os.environ.get(f"FLANNELD_{name}") or NODE_FILES[name])


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
            most = "" if math.isinf(self._most) else f", and at most {write_duration(self._most)}"
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


def _contexts(_context: click.Context, _parameter: click.Parameter, typed: str) -> list[str]:
    """What a shell proposes; nothing where the file cannot be read."""
    from flannelette.services.ctl.connect.contexts import known_contexts

    return [name for name in known_contexts() if name.startswith(typed)]


def _nodes(context: click.Context, _parameter: click.Parameter, typed: str) -> list[str]:
    from flannelette.services.ctl.connect.contexts import known_contexts

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


def fail(sentence: str, code: int = 1) -> NoReturn:
    """Says on standard error what is wrong, and ends the program."""
    click.echo(f"flannelette: {visible(sentence)}", err=True)
    sys.exit(code)
