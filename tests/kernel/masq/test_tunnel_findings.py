"""What drops the tunnels of the other backends, as their packets look: no kernel module is needed for that."""

import re
from ipaddress import ip_address

import pytest

from flannelette.services.core.network import parse_network
from flannelette.services.masq.diagnose.flows import Peer, Surroundings, tunnel_of
from flannelette.services.masq.diagnose.host_checks import findings
from flannelette.services.masq.diagnose.verdict import Flow
from flannelette.services.masq.firewalls.auto import HostProbe
from tests.findings.tunnel_rows import TUNNEL_FAULTS
from tests.findings.words import words
from tests.hosts.masq import SETTINGS, Host
from tests.hosts.two_hosts import EXAMPLES

_INPUT_DROPS = "iptables-legacy -A INPUT -p udp --dport {} -j DROP"
OPTIONS = {"ipsec": f',"PSK":"{"0123456789abcdef" * 6}"'}


def tunnel_to_peer(options: str, *, is_past_nat: bool | None) -> list[Flow]:
    around = Surroundings(
        (Peer(ip_address("10.99.0.12"), "eth0", ip_address("10.99.0.11"), is_past_nat=is_past_nat),)
    )
    return tunnel_of(parse_network(f'{{"Network":"10.5.0.0/16","Backend":{options}}}'), "", around)


@pytest.mark.parametrize("name", TUNNEL_FAULTS)
def test_a_firewall_that_drops_the_tunnel_of_a_backend_is_named(name: str, host: Host) -> None:
    fault = TUNNEL_FAULTS[name]
    options = f'{{"Type":"{fault.backend}"{OPTIONS.get(fault.backend, "")}}}'
    tunnel = tunnel_to_peer(options, is_past_nat=False)
    probe = HostProbe()
    try:
        host.run("sh", "-c", fault.act.format_map(words(*EXAMPLES[4])))
        (found,) = findings(probe.checks(), "nftables", [], SETTINGS, tunnel)
        said = (found.check, found.problem, found.cure.partition("  # ")[0])
        assert said == (fault.check, fault.problem, fault.cure)
        assert re.fullmatch(re.escape(fault.cause).replace(r"\*", ".*") + ".*", found.cause)
        if "firewall-cmd" not in fault.cure:
            host.run("sh", "-c", found.cure)
            assert not findings(probe.checks(), "nftables", [], SETTINGS, tunnel)
    finally:
        probe.close()


@pytest.mark.parametrize(
    ("is_past_nat", "encap", "act", "said"),
    [
        (True, False, _INPUT_DROPS.format("4500"), "broken: (UDP port 4500) are"),
        (None, False, _INPUT_DROPS.format("4500"), "warning: (UDP port 4500) may be"),
        (False, False, _INPUT_DROPS.format("4500"), ""),
        (None, True, _INPUT_DROPS.format("4500"), "broken: (UDP port 4500) are"),
        (True, False, _INPUT_DROPS.format("500"), "broken: (UDP port 500) are"),
        (True, False, "iptables-legacy -A INPUT -p esp -j DROP", ""),
        (None, False, "iptables-legacy -A INPUT -p esp -j DROP", "broken: (IP protocol 50) are"),
        (True, True, "iptables-legacy -A INPUT -p esp -j DROP", ""),
        (
            None,
            False,
            "iptables-nft -P OUTPUT DROP; iptables-nft -A OUTPUT -p esp -j ACCEPT; "
            "iptables-nft -A OUTPUT -p udp --sport 500 --dport 500 -j ACCEPT",
            "warning: (UDP port 4500) may be",
        ),
    ],
)
def test_what_ipsec_sends_past_a_nat_is_asked_about_where_it_may_be_sent(
    is_past_nat: bool | None, encap: bool, act: str, said: str, host: Host
) -> None:
    """ESP goes in UDP if charon has found a NAT, or is told to; before there is a tunnel nobody knows."""
    more = ',"UDPEncap":true' * encap
    tunnel = tunnel_to_peer(f'{{"Type":"ipsec"{OPTIONS["ipsec"]}{more}}}', is_past_nat=is_past_nat)
    probe = HostProbe()
    try:
        host.run("sh", "-c", act)
        found = findings(probe.checks(), "nftables", [], SETTINGS, tunnel)
        weights = ["broken" if each.is_broken else "warning" for each in found]
        told = [f"{weight}: {each.problem}" for weight, each in zip(weights, found, strict=True)]
        assert [each.replace("Packets between the nodes ", "").partition(" dropped")[0] for each in told] == (
            [said] if said else []
        )
        for each in found:
            host.run("sh", "-c", each.cure)
        assert not findings(probe.checks(), "nftables", [], SETTINGS, tunnel)
    finally:
        probe.close()
