"""The options of the lab, read from the environment, as make gives it, or from NAME=value arguments."""

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from flannelette.services.core.formats.text import word_list
from lab.topology import NETWORKS

BACKENDS: Final = ("vxlan", "host-gw", "ipip", "wireguard", "udp", "ipsec", "aws-vpc")
KERNEL_KINDS: Final = ("ipip", "wireguard")
"""Backends that need a kind of device, of their own name, that not every kernel has."""
MANY: Final = ("vxlan", "host-gw", "wireguard", "udp")
"""Backends that a host can have for several networks."""
FAMILIES: Final = {"ipv4": (4,), "ipv6": (6,), "dual": (4, 6)}
MOST_CLUSTERS: Final = 4
STORES: Final = ("embedded", "etcd")
PROCESSES: Final = ("separate", "one")
PICTURES: Final = {".svg": "svg", ".dot": "dot", ".mmd": "mermaid", ".txt": "text", ".json": "json"}
"""What `flannelette topology` prints, by the suffix of a file."""
MOST_NODES: Final = 200
"""10.5.0.0/16 has 255 subnets; one machine tires sooner."""

SMALLEST_PATH, LARGEST_PATH = 1280, 1499
_SMALLEST_OF_IPV6: Final = 1360
"""Bytes that carry a packet of 1280 bytes through every tunnel."""

USAGE: Final = f"""\
make lab [NAME=value ...]    or    python -m lab [NAME=value ...]

NODES=3            hosts, 1 to {MOST_NODES}
CLUSTERS=1         1 to {MOST_CLUSTERS}, each with NODES hosts: each imports the leases of the
                   others, and a router is between them
NETWORKS=1         1 to {len(NETWORKS)}: networks of each host, with a pod in each; not with
                   CLUSTERS
BACKEND=vxlan      {word_list(BACKENDS)};
                   udp: a network configuration without Backend;
                   aws-vpc: a VPC of moto, and a router with its table
FAMILY=ipv4        {word_list(FAMILIES)}: the address family of the pods, or both
STORE=embedded     {word_list(STORES)}: one central lease service, or an etcd and a
                   lease service on each host
PROCESS=separate   separate, one: a process for each service, or all services
                   of a host in one (`flannelette flanneld`), with STORE=etcd
PATH_MTU=1400      {SMALLEST_PATH} to {LARGEST_PATH}: larger packets between hosts with even and with odd
                   numbers vanish in the underlay, whose interfaces send 1500 bytes
VM=1               in a virtual machine, for a backend that this kernel has no
                   module for
ONCE=1             try everything, tear down; exit non-zero if anything failed
JSON=path          with ONCE=1: write the figures there
TOPOLOGY=lab.svg   write a picture of the cluster there: .svg, .dot, .mmd
                   (Mermaid), .txt or .json"""


class BadOption(Exception):
    """One line that says what is wrong and what would be right."""


class ArgumentParser(argparse.ArgumentParser):
    """A parser of --flags that raises BadOption for a wrong command line, and prints nothing."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.register("type", int, _int)
        self.register("type", float, _float)

    def error(self, message: str) -> NoReturn:
        """Raises BadOption with the message."""
        raise BadOption(message.removeprefix("argument "))


def _int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the lab."""

    nodes: int = 3
    backend: str = "vxlan"
    store: str = "embedded"
    family: str = "ipv4"
    vm: bool = False
    """Whether the cluster runs in a virtual machine, instead of on this one."""
    once: bool = False
    """Try everything and leave, instead of waiting for Ctrl-C."""
    json: Path | None = None
    """Where `once` writes its figures."""
    topology: Path | None = None
    """Where a picture of the cluster is written; its suffix is one of PICTURES."""
    clusters: int = 1
    """Number of clusters that import each other's leases, each with `nodes` hosts."""
    networks: tuple[str, ...] = ("",)
    """The names of those that each host is in; one without a name, if it is the only one."""
    process: str = "separate"
    """A process for each service, or all services of a host in `one`."""
    path_mtu: int = 0
    """Bytes of the largest packet that passes the middle of the underlay; 0: as large as the interfaces say."""

    @property
    def hosts(self) -> int:
        """How many, of all clusters together."""
        return self.nodes * self.clusters

    @property
    def versions(self) -> tuple[int, ...]:
        """The IP versions of the pods' addresses."""
        return FAMILIES[self.family]


def parse(arguments: Sequence[str], environment: Mapping[str, str]) -> Options:
    """The options, see `given_options`. Raises BadOption."""
    names = (
        "NODES",
        "BACKEND",
        "FAMILY",
        "STORE",
        "PROCESS",
        "VM",
        "ONCE",
        "JSON",
        "TOPOLOGY",
        "CLUSTERS",
        "NETWORKS",
        "PATH_MTU",
    )
    given = given_options(names, arguments, environment)
    process = one_of("PROCESS", given["PROCESS"] or "separate", PROCESSES)
    usual = "etcd" if process == "one" else "embedded"
    networks = whole_number("NETWORKS", given["NETWORKS"] or "1", len(NETWORKS))
    options = Options(
        nodes=whole_number("NODES", given["NODES"] or "3", MOST_NODES),
        backend=one_of("BACKEND", given["BACKEND"] or "vxlan", BACKENDS),
        family=one_of("FAMILY", given["FAMILY"] or "ipv4", tuple(FAMILIES)),
        store=one_of("STORE", given["STORE"] or usual, STORES),
        process=process,
        vm=one_of("VM", given["VM"] or "0", ("1", "0")) == "1",
        once=one_of("ONCE", given["ONCE"] or "0", ("1", "0")) == "1",
        json=_file("JSON", given["JSON"]),
        topology=_file("TOPOLOGY", given["TOPOLOGY"]),
        clusters=whole_number("CLUSTERS", given["CLUSTERS"] or "1", MOST_CLUSTERS),
        networks=NETWORKS[:networks] if networks > 1 else ("",),
        path_mtu=whole_number("PATH_MTU", given["PATH_MTU"], LARGEST_PATH, SMALLEST_PATH) if given["PATH_MTU"] else 0,
    )
    _refuse_path(options)
    if networks > 1 and options.backend not in MANY:
        raise BadOption(f"NETWORKS={networks}: use BACKEND={word_list(MANY)}, of which a host can have several")
    for name, is_given in (("CLUSTERS", options.clusters > 1), ("TOPOLOGY", options.topology is not None)):
        if networks > 1 and is_given:
            raise BadOption(f"NETWORKS={networks} with {name}={given[name]}: the lab has no such pair, leave one out")
    if process == "one" and (options.store != "etcd" or networks > 1 or options.clusters > 1):
        raise BadOption("PROCESS=one: a host's lease service is in it, use STORE=etcd with one network and cluster")
    if options.clusters > 1 and options.backend == "host-gw":
        raise BadOption(
            "CLUSTERS: host-gw needs all hosts on one layer 2, and between clusters is a router: use vxlan"
        )
    if options.hosts > MOST_NODES:
        raise BadOption(f"CLUSTERS={options.clusters}: together they may have {MOST_NODES} hosts, use fewer NODES")
    if options.backend == "aws-vpc" and (options.clusters > 1 or options.store != "embedded" or options.nodes < 2):
        raise BadOption("BACKEND=aws-vpc: the cloud's lab is one cluster of at least 2 hosts with STORE=embedded")
    if options.backend in ("ipip", "udp", "ipsec", "aws-vpc") and options.family != "ipv4":
        raise BadOption(f"FAMILY={options.family}: {options.backend} carries IPv4 only, use FAMILY=ipv4")
    if options.json and not options.once:
        raise BadOption("JSON needs ONCE=1: only a trial has figures to write")
    if options.topology and options.topology.suffix not in PICTURES:
        raise BadOption(f"TOPOLOGY={given['TOPOLOGY']}: name a file that ends in {word_list(PICTURES)}")
    return options


def _refuse_path(options: Options) -> None:
    """Raises BadOption for a narrow path that the lab cannot show."""
    said = f"PATH_MTU={options.path_mtu}"
    if options.path_mtu and (options.clusters > 1 or options.networks != ("",) or options.nodes < 2):
        raise BadOption(f"{said}: the lab has a narrow path in one cluster of at least 2 hosts with one network")
    if options.path_mtu and options.backend in ("ipsec", "aws-vpc"):
        raise BadOption(f"{said}: no route of {options.backend} follows a path, use BACKEND=vxlan")
    if 0 < options.path_mtu < _SMALLEST_OF_IPV6 and 6 in options.versions:
        raise BadOption(f"{said}: IPv6 needs 1280 bytes in the overlay, use {_SMALLEST_OF_IPV6} or FAMILY=ipv4")


def _file(name: str, text: str) -> Path | None:
    """The file to write, if one is named. Raises BadOption."""
    if not text:
        return None
    path = file_to_write(name, Path(text))
    refuse_run(name, path)
    return path


def refuse_run(name: str, path: Path) -> None:
    """Raises BadOption if the path is in /run, which the lab has for itself."""
    if path.resolve().is_relative_to("/run"):
        raise BadOption(f"{name}={path}: the lab has a /run of its own, name a file in another directory")


def given_options(names: Sequence[str], arguments: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """The value of each option; arguments win over the environment, and empty means unset. Raises BadOption."""
    given = {name: environment.get(name, "") for name in names}
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if name not in names or not equals:
            raise BadOption(f"{argument!r} is no option of the lab: use {', '.join(f'{n}=' for n in names)}")
        given[name] = value
    return given


def file_to_write(name: str, given: Path) -> Path:
    """The file as an absolute path, which is not written yet. Raises BadOption where it cannot be."""
    path = given.absolute()
    if not path.parent.is_dir():
        raise BadOption(f"{name}={given}: there is no directory {path.parent}")
    if path.is_dir():
        raise BadOption(f"{name}={given} is a directory: name a file")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise BadOption(f"{name}={given} cannot be written by this user: name another file")
    return path


def whole_number(name: str, text: str, most: int, least: int = 1) -> int:
    """Reads a whole number from `least` to `most`. Raises BadOption."""
    if not text.isascii() or not text.isdecimal() or not least <= int(text) <= most:
        raise BadOption(f"{name}={text}: use a whole number from {least} to {most}")
    return int(text)


def one_of(name: str, text: str, choices: Sequence[str]) -> str:
    """The text, which is one of the choices. Raises BadOption."""
    if text not in choices:
        raise BadOption(f"{name}={text}: use {word_list(choices)}")
    return text
