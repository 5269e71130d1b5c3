"""Facts of the network configuration, a row for each family; what is refused, and in which words."""

import json
from dataclasses import dataclass
from typing import Any

import pytest

from flannelette.services.core.errors import InvalidInput
from flannelette.services.core.family import IPV4, IPV6, Family
from flannelette.services.core.network import FamilyNetwork, parse_network


@dataclass(frozen=True)
class Row:
    """One family's facts, as COMPATIBILITY.md has them."""

    family: Family
    network: str
    default_length: int
    default_min: str
    default_max: str
    longest_network: int
    """The longest prefix of a network that is large enough."""
    longest_subnet: int
    default_fits: int
    """The longest prefix of a network that still gets subnets of the default length."""
    outside: str
    inside_unaligned: str
    aligned: str
    """The start of the subnet that holds `inside_unaligned`."""
    other_family: str
    everything: str

    def document(self, **keys: Any) -> str:
        """A configuration of this family alone; keys are written without the family's prefix."""
        values: dict[str, Any] = {"Network": self.network, **keys}
        members = {f"{self.family.key_prefix}{key}": value for key, value in values.items() if value is not None}
        switches = {"EnableIPv4": self.family is IPV4, "EnableIPv6": self.family is IPV6}
        return json.dumps({**switches, **members, "Backend": {"Type": "vxlan"}})

    def parse(self, **keys: Any) -> FamilyNetwork:
        """The one family of that configuration."""
        network = parse_network(self.document(**keys)).family(self.family)
        assert network is not None
        return network


V4 = Row(
    family=IPV4,
    network="10.3.0.0/16",
    default_length=24,
    default_min="10.3.1.0",
    default_max="10.3.255.0",
    longest_network=28,
    longest_subnet=30,
    default_fits=22,
    outside="10.4.0.0",
    inside_unaligned="10.3.5.7",
    aligned="10.3.5.0",
    other_family="fc00::/48",
    everything="0.0.0.0/0",
)
V6 = Row(
    family=IPV6,
    network="fc00::/48",
    default_length=64,
    default_min="fc00:0:0:1::",
    default_max="fc00:0:0:ffff::",
    longest_network=124,
    longest_subnet=126,
    default_fits=62,
    outside="fc01::",
    inside_unaligned="fc00:0:0:5::7",
    aligned="fc00:0:0:5::",
    other_family="10.3.0.0/16",
    everything="::/0",
)

both = pytest.mark.parametrize("row", [V4, V6], ids=["IPv4", "IPv6"])


def refusal(source: str, *, leases_subnets: bool = True) -> str:
    with pytest.raises(InvalidInput) as refused:
        parse_network(source, leases_subnets=leases_subnets)
    return str(refused.value)
