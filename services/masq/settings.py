"""The settings of the masq service."""

from dataclasses import dataclass
from ipaddress import ip_network

from services.core.errors import Misconfigured
from services.core.family import Network
from services.masq.rules import RuleSettings
from services.runtime.options import ProcessSettings, socket_address
from services.runtime.settings import flag


@dataclass(frozen=True, kw_only=True)
class MasqSettings(ProcessSettings):
    """Flags of flannelette-masq; flanneld's where it has them."""

    lease_address: str = flag(
        "", "Address of the lease service: unix:PATH or HOST:PORT. Default: lease.sock in --socket-dir."
    )
    state_dir: str = flag(
        "/var/lib/flannelette",
        "Where to remember the network and the own lease, so that the rules are there after a reboot also while the "
        "lease service or its store is away. Empty: nowhere.",
    )
    ip_masq: bool = flag(False, "Masquerade what pods send out of the overlay. Must be equal on the dataplane.")
    ip_masq_fully_random_disable: bool = flag(
        False, "Do not choose the source ports of masqueraded connections at random."
    )
    iptables_forward_rules: bool = flag(True, "Accept the overlay's packets in the FORWARD chain.")
    firewall: str = flag(
        "auto",
        "Where the rules are kept: nftables, in tables of our own; iptables, in flannel's chains, whichever iptables "
        "the host uses; auto, as EnableNFTables of the network configuration says.",
        choices=("auto", "iptables", "nftables"),
    )
    allowed_network: tuple[str, ...] = flag(
        (),
        "Keep no rules for a network that is not within this one, whatever the lease service says; may be repeated.",
    )
    iptables_resync: int = flag(5, "Longest time between two full comparisons of the rules, in seconds.")

    def __post_init__(self) -> None:
        if self.iptables_resync < 1:
            raise Misconfigured(f"--iptables-resync is {self.iptables_resync}: use at least 1 second")
        self.allowed()

    def allowed(self) -> tuple[Network, ...]:
        """What `--allowed-network` says. Raises Misconfigured for what is no network."""
        try:
            return tuple(ip_network(text) for text in self.allowed_network)
        except ValueError as error:
            raise Misconfigured(f"--allowed-network: {error}; write it like 10.5.0.0/16") from None

    @property
    def lease_service(self) -> str:
        """Where the lease service is."""
        return self.lease_address or socket_address(self.socket_dir, "lease")

    @property
    def rules(self) -> RuleSettings:
        """What the rules depend on."""
        random = not self.ip_masq_fully_random_disable
        return RuleSettings(self.ip_masq, self.iptables_forward_rules, random, self.allowed())
