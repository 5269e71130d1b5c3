"""Cures at hooks where no rule can ask what the host takes: its addresses are left out, or there is no command."""

from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest

from flannelette.services.core.conditions import Condition as Finding
from flannelette.services.core.network import parse_network
from flannelette.services.masq.diagnose.cures import MOST_PEERS, Host
from flannelette.services.masq.diagnose.flows import Pod, Surroundings, flows_of
from flannelette.services.masq.diagnose.obstacles import dropping
from flannelette.services.masq.diagnose.verdict import (
    NFT,
    Condition,
    Effect,
    ForeignChain,
    ForeignRule,
    ForeignTable,
    NfHook,
)

NETWORK = parse_network('{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}')
SUBNETS = (ip_network("10.5.27.0/24"),)
AROUND = Surroundings(bridges=((4, "cni0"),), ports=("veth0",))
RULE = ForeignRule("drop", (), Effect.DROP, chain="in", handle=2)
GUARD = ForeignTable(NFT, 0, "guard", {"in": ForeignChain("in", (RULE,), NfHook.BRIDGE_INPUT)}, family="bridge")


def found(*own: str) -> Finding:
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


PODS = tuple(
    Pod(f"veth{number}", ip_address(f"10.5.27.{number + 2}"), bytes((2, 0, 0, 0, 0, number))) for number in range(2)
)


@pytest.mark.parametrize(
    ("allowed", "pods", "named"),
    [
        ("10.5.27.2", PODS, []),
        ("10.5.27.9", PODS, ["Packets of the pod at veth0 are dropped."]),
        ("10.5.27.2", (), []),
    ],
    ids=["its own", "another", "of a pod that nobody knows"],
)
def test_the_address_that_a_rule_allows_at_a_port_is_compared_with_that_of_the_pod_there(
    allowed: str, pods: tuple[Pod, ...], named: list[str]
) -> None:
    others = Condition(incoming="veth0"), Condition(source=ip_network(allowed), negated=True)
    rule = ForeignRule("drop", others, Effect.DROP, chain="in", handle=2)
    table = replace(GUARD, chains={"in": replace(GUARD.chains["in"], rules=(rule,))})
    around = replace(AROUND, ports=("veth0", "veth1"), pods=pods)
    flows = flows_of(NETWORK, SUBNETS, "", around)
    told = dropping([table], "", flows, Host(own=(ip_network("10.99.0.11"),)))
    assert [each.problem for each in told] == named
    for each in told:
        assert each.is_part, "the pods at other ports lose nothing"
        accepted = "insert rule bridge guard in handle 2 ip saddr 10.5.27.2 ip daddr 10.5.0.0/16 accept"
        assert each.cure.startswith(f"nft {accepted}"), each.cure
        assert "10.5.27.3" not in each.cure
