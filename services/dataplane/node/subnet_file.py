"""`subnet.env`: what the CNI plugin, docker's `--bip` and we ourselves after a restart read."""

from pathlib import Path
from typing import Final

from flannelette.services.core.addresses import parse_cidr
from flannelette.services.core.family import FAMILIES, Network, family_of
from flannelette.services.core.formats.shell_words import read_lines
from flannelette.services.core.frozen import frozen
from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.network import NetworkConfig
from flannelette.services.runtime.os.files import replace_file

_NAMES: Final = {
    4: ("FLANNEL_NETWORK", "FLANNEL_SUBNET"),
    6: ("FLANNEL_IPV6_NETWORK", "FLANNEL_IPV6_SUBNET"),
}


@frozen
class SubnetFile:
    """What stands in the file."""

    networks: tuple[Network, ...]
    """IPv4 first; as many as `subnets`."""
    subnets: tuple[Network, ...]
    mtu: int
    ip_masq: bool

    def text(self) -> str:
        """The content of the file in flannel's order, with each subnet as its first usable address:
        `FLANNEL_SUBNET=10.5.52.1/24`.
        """
        lines = []
        for network, subnet in zip(self.networks, self.subnets, strict=True):
            network_name, subnet_name = _NAMES[network.version]
            lines += [
                f"{network_name}={network}",
                f"{subnet_name}={subnet.network_address + 1}/{subnet.prefixlen}",
            ]
        lines += [f"FLANNEL_MTU={self.mtu}", f"FLANNEL_IPMASQ={'true' if self.ip_masq else 'false'}"]
        return "\n".join(lines) + "\n"


def subnet_file(network: NetworkConfig, lease: Lease, mtu: int, *, ip_masq: bool) -> SubnetFile:
    """The file that belongs to a lease."""
    cidrs = {family_of(n.cidr): n.cidr for n in network.families}
    rows = [(cidrs[f], s.cidr) for f in FAMILIES if f in cidrs and (s := lease.subnet(f)) is not None]
    return SubnetFile(tuple(n for n, _ in rows), tuple(s for _, s in rows), mtu, ip_masq)


def write_subnet_file(path: Path, content: SubnetFile) -> bool:
    """Replaces the file atomically (directory 0755, file 0644); returns whether it was different before."""
    return replace_file(path, content.text(), 0o644)


def what_pods_keep(path: Path, content: SubnetFile) -> list[str]:
    """The lines of the file as it is that will be others, and with which pods have been made."""
    try:
        old = path.read_text(errors="replace").splitlines()
    except OSError:
        return []
    names = ("FLANNEL_SUBNET=", "FLANNEL_IPV6_SUBNET=", "FLANNEL_MTU=")
    return [line for line in old if line.startswith(names) and line not in content.text().splitlines()]


def read_previous_subnets(path: Path) -> tuple[Network, ...]:
    """The subnets that the node had, IPv4 first; none if the file is missing or says nothing usable.

    Bad lines are passed over. A comma list (flannel v0.22 to v0.24 wrote some) with more than one entry means no
    previous subnet in that family. Quotes around a value do not matter.
    """
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return ()
    values = read_lines(text)
    found = (_network(version, values.get(name, "")) for version, (_, name) in _NAMES.items())
    return tuple(network for network in found if network is not None)


def _network(version: int, text: str) -> Network | None:
    network = parse_cidr(text)
    return network if network is not None and network.version == version else None
