"""Cures at hooks where no rule can ask what the host takes: its addresses are left out, or there is no command."""

from ipaddress import ip_network

import pytest

from flannelette.services.core.conditions import Condition
from flannelette.services.core.network import parse_network
from flannelette.services.masq.diagnose.cures import MOST_PEERS, Host
from flannelette.services.masq.diagnose.flows import Surroundings, flows_of
from flannelette.services.masq.diagnose.obstacles import dropping
from flannelette.services.masq.diagnose.verdict import NFT, Effect, ForeignChain, ForeignRule, ForeignTable, NfHook

NETWORK = parse_network('{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}')
SUBNETS = (ip_network("10.5.27.0/24"),)
AROUND = Surroundings(bridges=((4, "cni0"),), ports=("veth0",))
RULE = ForeignRule("drop", (), Effect.DROP, chain="in", handle=2)
GUARD = ForeignTable(NFT, 0, "guard", {"in": ForeignChain("in", (RULE,), NfHook.BRIDGE_INPUT)}, family="bridge")


def found(*own: str) -> Condition:
    host = Host(own=tuple(ip_network(each) for each in own))
    (one,) = dropping([GUARD], "", flows_of(NETWORK, SUBNETS, "", AROUND), host)
    return one


def test_the_hosts_addresses_in_the_network_are_left_out() -> None:
    cure = found("127.0.0.0/8", "10.5.27.1/32", "10.5.27.255/32", "10.99.0.11/32", "fd00::1/128").cure
    accepted = "ip saddr 10.5.27.0/24 ip daddr 10.5.0.0/16 ip daddr '!=' '{ 10.5.27.1, 10.5.27.255 }' accept"
    assert cure.startswith(f"nft insert rule bridge guard in handle 2 {accepted}  #")


def test_a_network_that_the_host_takes_whole_is_left_out() -> None:
    assert "ip daddr '!=' 10.0.0.0/8 accept" in found("10.0.0.0/8").cure


@pytest.mark.parametrize("own", [(), [f"10.5.28.{number}/32" for number in range(MOST_PEERS + 1)]])
def test_where_these_are_unknown_or_too_many_there_is_no_command(own: list[str]) -> None:
    one = found(*own)
    assert not one.cure
    assert "none to an address of this host" in one.cause
