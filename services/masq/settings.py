"""The settings of the masq service."""

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address, ip_network

from flannelette.services.core.errors import Misconfigured
from flannelette.services.core.family import Network
from flannelette.services.masq.guard import GuardMode, GuardSettings
from flannelette.services.masq.pod_guard import PodGuardMode
from flannelette.services.masq.rules import Pool, RuleSettings
from flannelette.services.runtime.process.settings import NodeSettings, flag


@dataclass(frozen=True, kw_only=True)
class MasqSettings(NodeSettings):
    """Flags of flannelette-masq; flanneld's where it has them."""

    state_dir: str = flag(
        "/var/lib/flannelette",
        "Directory that keeps the network and the own lease for a reboot while the lease service or its store is "
        "away. Empty: none.",
    )
    ip_masq: bool = flag(False, "Masquerade packets of pods that leave the overlay. Must be equal on the dataplane.")
    ip_masq_fully_random_disable: bool = flag(
        False, "Do not choose the source ports of masqueraded connections at random."
    )
    ip_masq_exclude: tuple[str, ...] = flag(
        (),
        "Let pods reach this network under their own addresses, because its hosts have a route back to them; may be "
        "repeated. NoMasquerade of the network configuration says it for all nodes.",
    )
    ip_masq_source: str = flag(
        "",
        "Let packets of pods leave the overlay under this address, or one of FIRST-LAST, not that of the interface "
        "that they leave by, with --ip-masq: ADDRESS, ADDRESS6 or ADDRESS,ADDRESS6. Answers must come to this node.",
    )
    clamp_mss: bool = flag(
        False,
        "Lower the MSS of TCP between pods to what the routes to both carry, for pods that hear no ICMP of a narrow "
        "path, and peers that run flanneld. Needs nftables in the kernel.",
    )
    iptables_forward_rules: bool = flag(True, "Accept the overlay's packets in the FORWARD chain.")
    firewall: str = flag(
        "auto",
        "Firewall for the rules: nftables, in tables of our own; iptables, in flannel's chains of the iptables "
        "variant that the host uses; auto, by EnableNFTables of the network configuration.",
        choices=("auto", "iptables", "nftables"),
    )
    fabric_guard: str = flag(
        "off",
        "Packets of the overlay that no peer has sent, and what pods and users of the host send to a tunnel's port: "
        "on drops them, warn counts them. With backends vxlan, ipip and udp; needs nftables in the kernel.",
        choices=("on", "warn", "off"),
    )
    fabric_guard_source: tuple[str, ...] = flag(
        (),
        "Let peers' packets come from this network, too, where not all come from the peers' public addresses; may be "
        "repeated.",
    )
    pod_guard: str = flag(
        "off",
        "Packets of pods whose source is not theirs, on the bridge cni0: subnet drops those with a source in no "
        "network of this node's pods; exact, where CNI's results tell a pod's MAC and addresses, all but these, also "
        "in ARP and neighbour discovery. Needs nftables in the kernel.",
        choices=("off", "subnet", "exact"),
    )
    cni_state_dir: str = flag(
        "/var/lib/cni", "Where CNI keeps the results that --pod-guard=exact reads. Empty: nowhere."
    )
    allowed_network: tuple[str, ...] = flag(
        (),
        "Keep no rules for a network outside this one; may be repeated.",
    )
    iptables_resync: int = flag(5, "Longest time between two full comparisons of the rules, in seconds.")

    def __post_init__(self) -> None:
        if self.iptables_resync < 1:
            raise Misconfigured(f"--iptables-resync is {self.iptables_resync}: use at least 1 second")
        if self.pod_guard != PodGuardMode.OFF and self.network:
            raise Misconfigured(
                "--pod-guard with --network: the bridge cni0 is that of the network without a name; leave it out"
            )
        self.guarding  # noqa: B018 - it raises Misconfigured
        self.rules  # noqa: B018 - it raises Misconfigured
        self.node_network  # noqa: B018 - it raises Misconfigured

    @property
    def rules(self) -> RuleSettings:
        """What the rules depend on. Raises Misconfigured for what is no network or address."""
        return RuleSettings(
            self.ip_masq,
            self.iptables_forward_rules,
            not self.ip_masq_fully_random_disable,
            _networks("--ip-masq-exclude", self.ip_masq_exclude),
            _pools(self.ip_masq_source),
            _networks("--allowed-network", self.allowed_network),
            self.socket_suffix,
        )

    @property
    def guarding(self) -> GuardSettings:
        """What the fabric guard depends on. Raises Misconfigured for what is no network."""
        sources = _networks("--fabric-guard-source", self.fabric_guard_source)
        return GuardSettings(GuardMode(self.fabric_guard), sources, self.ip_masq, self.socket_suffix)


def _networks(name: str, texts: Iterable[str]) -> tuple[Network, ...]:
    try:
        return tuple(map(ip_network, texts))
    except ValueError as error:
        raise Misconfigured(f"{name}: {error}; write it like 10.5.0.0/16") from None


def _pools(text: str) -> tuple[Pool, ...]:
    example = "write it like 192.0.2.5, 192.0.2.5-192.0.2.8 or 192.0.2.5,2001:db8::5"
    pools = list[Pool]()
    for each in filter(None, text.split(",")):
        first, _, last = each.partition("-")
        try:
            pool = Pool(ip_address(first), ip_address(last or first))
        except ValueError as error:
            raise Misconfigured(f"--ip-masq-source: {error}; {example}") from None
        if pool.first.version != pool.last.version or int(pool.first) > int(pool.last):
            raise Misconfigured(f"--ip-masq-source: {each} does not go from one address up to another; {example}")
        wrong = [end for end in (pool.first, pool.last) if end.is_multicast or end.is_loopback or end.is_unspecified]
        if wrong:
            raise Misconfigured(f"--ip-masq-source: no host answers to {wrong[0]}; {example}")
        pools.append(pool)
    if len({pool.first.version for pool in pools}) < len(pools):
        raise Misconfigured(f"--ip-masq-source: {text} has two of one address family; {example}")
    return tuple(pools)
