"""docker's options from `subnet.env`: the files that flannel's mk-docker-opts.sh writes, for the same units."""

import os
import sys
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from pathlib import Path
from typing import Final

import click

from flannelette.services.core.addresses import parse_cidr
from flannelette.services.core.formats.shell_words import read_lines
from flannelette.services.ctl.options import fail

_SUBNET: Final = Path("/run/flannel/subnet.env")
_OPTIONS: Final = Path("/run/docker_opts.env")
_ROUTES: Final = Path("/proc/net/route")
_MASQUERADE: Final = {"true": "--ip-masq=false", "false": "--ip-masq=true"}
"""docker's option by FLANNEL_IPMASQ: one of the two masquerades, and only one."""


def options(values: Mapping[str, str], *, ip_masq: bool = True) -> dict[str, str]:
    """Returns docker's options by variable, in the order of mk-docker-opts.sh. Raises ValueError, saying what is
    wrong with subnet.env.

    Without `ip_masq`, docker's default decides whether docker masquerades.
    """
    subnet, mtu = values.get("FLANNEL_SUBNET", ""), values.get("FLANNEL_MTU", "")
    if not subnet:
        raise ValueError("the file has no FLANNEL_SUBNET: docker's --bip needs an IPv4 subnet")
    if parse_cidr(subnet) is None:
        raise ValueError(f"FLANNEL_SUBNET={subnet!r} is not an address with a prefix length, such as 10.5.52.1/24")
    if not (mtu.isascii() and mtu.isdigit()):
        raise ValueError(f"FLANNEL_MTU={mtu!r} is not a number of bytes")
    found = {"DOCKER_OPT_BIP": f"--bip={subnet}"}
    overlay_masquerades = values.get("FLANNEL_IPMASQ", "")
    if ip_masq and overlay_masquerades:
        if overlay_masquerades not in _MASQUERADE:
            raise ValueError(f"FLANNEL_IPMASQ={overlay_masquerades!r} is neither true nor false")
        found["DOCKER_OPT_IPMASQ"] = _MASQUERADE[overlay_masquerades]
    return {**found, "DOCKER_OPT_MTU": f"--mtu={mtu}"}


def gateway_to(subnet: str, routes: str) -> str:
    """The gateway of a route to the whole subnet, in a table in the format of /proc/net/route; empty: none.

    Such a route leads to another host, and docker would give its containers addresses that lie there.
    """
    wanted = IPv4Interface(subnet).network
    for line in routes.splitlines()[1:]:
        fields = line.split()
        destination, gateway, mask = (_address(fields[column]) for column in (1, 2, 7))
        if gateway != IPv4Address(0) and IPv4Network(f"{destination}/{mask}") == wanted:
            return str(gateway)
    return ""


def _address(text: str) -> IPv4Address:
    """The kernel writes addresses in hexadecimal, in the byte order of the machine."""
    return IPv4Address(int(text, 16).to_bytes(4, sys.byteorder))


def text_of(found: Mapping[str, str], *, single: bool, combined: str) -> str:
    """The environment file: one variable each if `single`, and all in one of the name `combined` if there is one."""
    lines = [f'{name}="{value}"' for name, value in found.items()] if single else []
    if combined:
        lines.append(f'{combined}=" {" ".join(found.values())}"')
    return "\n".join(lines) + "\n"


@click.command("docker-opts")
@click.option(
    "-f", "source", type=click.Path(path_type=Path), default=_SUBNET, show_default=True, help="File to read."
)
@click.option(
    "-d", "target", type=click.Path(path_type=Path), default=_OPTIONS, show_default=True, help="File to write."
)
@click.option(
    "-i", "single", is_flag=True, help="Write each option to a variable of its own, such as DOCKER_OPT_MTU."
)
@click.option("-c", "combined", is_flag=True, help="Write all options to one variable.")
@click.option(
    "-k", "key", default="DOCKER_OPTS", show_default=True, metavar="NAME", help="Name of the combined variable."
)
@click.option("-m", "without_ip_masq", is_flag=True, help="Omit --ip-masq.")
def docker_opts(source: Path, target: Path, single: bool, combined: bool, key: str, without_ip_masq: bool) -> None:
    """Write a file with docker's options for this node.

    For a docker that attaches its containers to the overlay with --bip. Flags and
    files are those of flannel's mk-docker-opts.sh; the default is -i and -c. Run
    it before docker starts, and again when the subnet changes. `-d -` prints.
    """
    if not key.isidentifier():
        raise click.BadParameter(f"{key!r} is not a valid variable name", param_hint="-k")
    both = not (single or combined)
    if not source.exists():
        fail(f"there is no {source}: the dataplane writes it once it has a subnet")
    try:
        values = read_lines(source.read_text(errors="replace"))
        found = options(values, ip_masq=not without_ip_masq)
        gateway = gateway_to(values["FLANNEL_SUBNET"], _ROUTES.read_text())
        if gateway:
            raise ValueError(
                f"the kernel routes FLANNEL_SUBNET={values['FLANNEL_SUBNET']} via {gateway}, to another host: delete "
                "that route, or correct the subnet"
            )
        text = text_of(found, single=single or both, combined=key if combined or both else "")
        if str(target) == "-":
            click.echo(text, nl=False)
        else:
            _replace(target, text)
    except OSError as error:
        fail(f"cannot write {target}: {error.strerror}" if source.is_file() else f"{source}: {error.strerror}")
    except ValueError as error:
        fail(f"{source}: {error}")


def _replace(target: Path, text: str) -> None:
    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    fresh.write_text(text)
    fresh.chmod(0o644)
    fresh.replace(target)
