"""docker's options from `subnet.env`: the files that flannel's mk-docker-opts.sh writes, for the same units."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click

from services.core.notation import parse_cidr
from services.core.subnet_env import read_lines

_SUBNET: Final = Path("/run/flannel/subnet.env")
_OPTIONS: Final = Path("/run/docker_opts.env")


def options(values: Mapping[str, str], *, ip_masq: bool = True) -> dict[str, str]:
    """By variable, in the order of mk-docker-opts.sh. Raises ValueError, saying what is wrong with subnet.env.

    docker masquerades only if the overlay does not, and `ip_masq` does not leave that option out.
    """
    subnet, mtu = values.get("FLANNEL_SUBNET", ""), values.get("FLANNEL_MTU", "")
    if not subnet:
        raise ValueError("it has no FLANNEL_SUBNET: docker's --bip needs an IPv4 subnet")
    if parse_cidr(subnet) is None:
        raise ValueError(f"FLANNEL_SUBNET={subnet!r} is no address with a length, such as 10.5.52.1/24")
    if not (mtu.isascii() and mtu.isdigit()):
        raise ValueError(f"FLANNEL_MTU={mtu!r} is no number of bytes")
    found = {"DOCKER_OPT_BIP": f"--bip={subnet}"}
    if ip_masq and values.get("FLANNEL_IPMASQ") == "true":
        found["DOCKER_OPT_IPMASQ"] = "--ip-masq=false"
    return {**found, "DOCKER_OPT_MTU": f"--mtu={mtu}"}


def text_of(found: Mapping[str, str], *, single: bool, combined: str) -> str:
    """The environment file: one variable each if `single`, and all in one of the name `combined` if there is one."""
    lines = [f'{name}="{value}"' for name, value in found.items()] if single else []
    if combined:
        lines.append(f'{combined}=" {" ".join(found.values())} "')
    return "\n".join(lines) + "\n"


@click.command("docker-opts")
@click.option("-f", "source", type=click.Path(path_type=Path), default=_SUBNET, show_default=True, help="Read this.")
@click.option(
    "-d", "target", type=click.Path(path_type=Path), default=_OPTIONS, show_default=True, help="Write this."
)
@click.option("-i", "single", is_flag=True, help="Each option in a variable of its own, DOCKER_OPT_MTU and so on.")
@click.option("-c", "combined", is_flag=True, help="All options in one variable.")
@click.option("-k", "key", default="DOCKER_OPTS", show_default=True, metavar="NAME", help="The name of that one.")
@click.option("-m", "without_ip_masq", is_flag=True, help="Leave --ip-masq out.")
def docker_opts(source: Path, target: Path, single: bool, combined: bool, key: str, without_ip_masq: bool) -> None:
    """Writes a file with docker's options for this node.

    Same flags and files as flannel's mk-docker-opts.sh: without -i and -c both.
    For a docker that puts its containers into the overlay with --bip. Run it
    before docker starts, and again when the subnet changes. `-d -` prints.
    """
    if not key.isidentifier():
        raise click.BadParameter(f"{key!r} is no name of a variable", param_hint="-k")
    both = not (single or combined)
    if not source.exists():
        _fail(f"there is no {source}: the dataplane writes it once it has a subnet")
    try:
        found = options(read_lines(source.read_text(errors="replace")), ip_masq=not without_ip_masq)
        text = text_of(found, single=single or both, combined=key if combined or both else "")
        if str(target) == "-":
            click.echo(text, nl=False)
        else:
            _replace(target, text)
    except OSError as error:
        _fail(f"cannot write {target}: {error.strerror}" if source.is_file() else f"{source}: {error.strerror}")
    except ValueError as error:
        _fail(f"{source}: {error}")


def _replace(target: Path, text: str) -> None:
    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    fresh.write_text(text)
    fresh.chmod(0o644)
    fresh.replace(target)


def _fail(sentence: str) -> None:
    click.echo(f"flannelette: {sentence}", err=True)
    sys.exit(1)
