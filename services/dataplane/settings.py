"""The dataplane's settings: flannel's flags of the same names, and a few of our own."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from flannelette.services.core.addresses import parse_address, parse_cidr
from flannelette.services.core.errors import Misconfigured
from flannelette.services.core.family import FAMILIES, Address, Network
from flannelette.services.dataplane.backends.backend import NodeFiles
from flannelette.services.dataplane.peers import OperatorLimits
from flannelette.services.dataplane.underlay import InterfaceChoice, compile_pattern
from flannelette.services.runtime.networks import NodeNetwork
from flannelette.services.runtime.process.settings import NodeSettings, flag

ROUTE_PROTOCOL: Final = 77
"""Protocol number of the routes in the network without a name."""
_GOOD_OFFLOAD: Final = (5, 7)
"""Linux 5.7 (ea64d8d6c675): before, masquerading turned the absent checksum of a VXLAN packet into a wrong one."""


def mark_of(network: NodeNetwork, number: int) -> int:
    """The route protocol of a network, by its name unless --route-protocol says another one than the default."""
    return (network.route_protocol or number) if number == ROUTE_PROTOCOL else number


@dataclass(frozen=True, kw_only=True)
class DataplaneSettings(NodeSettings):
    """The settings of the dataplane, which `flannelette-dataplane --help` describes."""

    iface: tuple[str, ...] = flag((), "Interface (name or IP) that carries the overlay; may be repeated, in order.")
    iface_regex: tuple[str, ...] = flag(
        (), "RE2 expression for the interface's IP or name, tried after --iface; may be repeated, in order."
    )
    iface_can_reach: str = flag("", "Use the interface through which the kernel reaches this IP.")
    public_ip: str = flag("", "IPv4 address to which other nodes send. Default: that of the interface.")
    public_ipv6: str = flag("", "IPv6 address to which other nodes send. Default: that of the interface.")
    subnet_file: Path = flag(
        Path("/run/flannel/subnet.env"), "File for the CNI plugin, with this node's subnet (subnet.env)."
    )
    state_dir: str = flag(
        "/var/lib/flannelette",
        "Directory that keeps the leases for a reboot while the lease service or its store is away. Empty: none.",
    )
    subnet_lease_renew_margin: int = flag(60, "Renew the lease this many minutes before it expires (1 to 1439).")
    allowed_network: tuple[str, ...] = flag(
        (), "Route no subnet outside this network; may be repeated. Default: the configured network."
    )
    never_route: tuple[str, ...] = flag(
        (),
        "Route no subnet that covers this address or network (an etcd, an API server); may be repeated. "
        "The underlay's own networks are always protected.",
    )
    ip_blackhole_route: bool = flag(
        False, "Add a blackhole route of the last metric for the own subnet, for addresses that no pod has."
    )
    cni_install_path: str = flag(
        "", "Where to install the CNI configuration once this node is ready for pods. Default: nowhere."
    )
    cni_config_path: Path = flag(Path("/etc/kube-flannel/cni-conf.json"), "The CNI configuration to install.")
    cni_state_dir: str = flag(
        "/var/lib/cni",
        "Where CNI keeps addresses and results, by which the pods of this node are known. Empty: nowhere.",
    )
    ip_masq: bool = flag(False, "Value of FLANNEL_IPMASQ in the subnet file. Must be equal on masq.")
    route_protocol: int = flag(
        ROUTE_PROTOCOL,
        "Route protocol number that marks our routes (see rtnetlink(7)); 5 to 255. Default with --network: one of "
        "100 to 179, by the name.",
    )
    checksum_offload: str = flag(
        "auto",
        "Whether VXLAN devices compute checksums (tx-checksum-ip-generic): auto turns it off before Linux 5.7, "
        "which broke those of masqueraded packets.",
        choices=("auto", "on", "off"),
    )
    allow_extension_commands: bool = flag(
        False,
        "Let the network configuration run its commands here (backend extension), with the rights of this process.",
    )
    extension_timeout: float = flag(30.0, "Seconds after which a command of backend extension is ended.")
    charon_socket: Path = flag(Path("/run/charon.vici"), "Socket of strongSwan's charon (vici), for backend ipsec.")
    probe_rate: float = flag(
        4.0, "ICMP packets a second that ask the peers, in turn, whether they answer; 0: none. They need CAP_NET_RAW."
    )
    path_mtu: str = flag(
        "routes",
        "What follows the largest packets that probes find to reach a peer, where that is less than the MTU: routes, "
        "which have the kernel tell pods; all, FLANNEL_MTU in the subnet file for new pods too; off, nothing.",
        choices=("off", "routes", "all"),
    )
    audit_interval: float = flag(60.0, "Seconds between two comparisons of the whole kernel state with the leases.")

    def __post_init__(self) -> None:
        if not 1 <= self.subnet_lease_renew_margin <= 1439:
            raise Misconfigured(
                f"--subnet-lease-renew-margin is {self.subnet_lease_renew_margin}: use 1 to 1439 minutes"
            )
        if not 5 <= self.route_protocol <= 255:
            raise Misconfigured(
                f"--route-protocol is {self.route_protocol}: use 5 to 255 (lower numbers belong to the kernel)"
            )
        if not self.audit_interval > 0:  # so that NaN is refused too
            raise Misconfigured(f"--audit-interval is {self.audit_interval:g}: use a number of seconds above 0")
        if not 0 <= self.probe_rate <= 1000:
            raise Misconfigured(f"--probe-rate is {self.probe_rate:g}: use 0 to 1000 packets a second")
        if not self.extension_timeout > 0:
            raise Misconfigured(f"--extension-timeout is {self.extension_timeout:g}: use a number of seconds above 0")
        for pattern in self.interface_choice().patterns:
            compile_pattern(pattern)
        self.limits()
        self.node_network  # noqa: B018 - it raises Misconfigured

    @property
    def is_named(self) -> bool:
        """Whether the network has files and marks by its name."""
        return bool(self.socket_suffix)

    def in_network(self) -> "DataplaneSettings":
        """The settings, with the files, the mark and the lease service of the network."""
        network = self.node_network
        return replace(
            self,
            network=(network.name,) if network.name else (),
            lease_address=network.lease_address,
            subnet_file=network.place(self.subnet_file),
            cni_install_path=self.cni_install_path and str(network.place(Path(self.cni_install_path))),
            cni_config_path=network.place(self.cni_config_path),
            route_protocol=mark_of(network, self.route_protocol),
        )

    def node_files(self, environment: Mapping[str, str]) -> NodeFiles:
        """Where backends keep files; flannel's variables of the same names, empty means unset."""
        key, network = environment.get("WIREGUARD_KEY_FILE"), self.node_network
        key_file = network.place(Path(key) if key else NodeFiles().wireguard_key)
        return NodeFiles(key_file, self.charon_socket, network.suffix)

    def limits(self) -> OperatorLimits:
        """What the flags say about leases. Raises Misconfigured for a network that is none."""
        host = host_of(self.lease_address)
        return OperatorLimits(
            tuple(_network("--allowed-network", text) for text in self.allowed_network),
            tuple(_network("--never-route", text) for text in (*self.never_route, *([str(host)] if host else []))),
        )

    def interface_choice(self) -> InterfaceChoice:
        """What the flags say about the interface. Raises Misconfigured for an address or a pattern that is none."""
        texts = {4: ("--public-ip", self.public_ip), 6: ("--public-ipv6", self.public_ipv6)}
        public = tuple(_address(*texts[f.version], f.version) for f in FAMILIES if texts[f.version][1])
        if self.iface_can_reach:
            _address("--iface-can-reach", self.iface_can_reach, None)
        for pattern in self.iface_regex:
            compile_pattern(pattern)
        return InterfaceChoice(self.iface, self.iface_regex, self.iface_can_reach, public)


def host_of(target: str) -> Address | None:
    """The address in a gRPC target like `10.99.0.1:4242`; None for a name or a socket."""
    host = re.sub(r"^(dns|ipv4|ipv6):/*", "", target).rpartition(":")[0]
    return parse_address(host.removeprefix("[").removesuffix("]"))


def _network(source: str, text: str) -> Network:
    network = parse_cidr(text if "/" in text else f"{text}/{128 if ':' in text else 32}")
    if network is None:
        raise Misconfigured(f"{source} {text!r} is not a network: write it like 10.5.0.0/16")
    return network


def _address(source: str, text: str, version: int | None) -> Address:
    try:
        address = ip_address(text)
    except ValueError:
        raise Misconfigured(f"{source} {text!r} is not an IP address") from None
    if version is not None and address.version != version:
        raise Misconfigured(f"{source} {text!r} is not an IPv{version} address")
    return address


def wanted_offload(word: str, kernel_release: str) -> bool | None:
    """What `auto`, `on` or `off` of --checksum-offload means on a kernel like `6.18.5-cloud`; None: let it be."""
    if word != "auto":
        return word == "on"
    numbers = [int(part) if part.isdecimal() else 0 for part in kernel_release.split(".")[:2]]
    return False if tuple(numbers) < _GOOD_OFFLOAD else None
