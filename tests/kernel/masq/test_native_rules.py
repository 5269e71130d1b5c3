"""Rules that only nft(8) can write, in the tables of iptables-nft: ours are in force beside them, and they stay."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from flannelette.services.core.family import FAMILIES
from tests.hosts.four_hosts import PAIRS, Lab, ports, source_expected, source_seen
from tests.hosts.masq import DUAL_CHAINS, NO_CHAINS, OUR_WORDS, Host, HostsFirewall, entered, put_right
from tests.hosts.namespaces import NamespaceMaker

POSTROUTING = "chain POSTROUTING { type nat hook postrouting priority 100;"
FORWARD = "chain FORWARD { type filter hook forward priority 0; policy drop;"
NATIVE = {
    "a masquerade": f"table IP nat {{ {POSTROUTING} oifname wan masquerade; }}; }}",
    "sets without a name": (
        f"table IP nat {{ {POSTROUTING} meta mark {{ 7, 9 }} return; IP daddr {{ ADDRESS }} counter return; }}; }}"
    ),
    "a set with a name, and a map of verdicts": (
        f"table IP nat {{ set s {{ type inet_service; elements = {{ 81 }}; }}; {POSTROUTING} "
        "udp dport @s masquerade; udp dport vmap { 82 : accept, 83 : return }; }; }"
    ),
    "a map of addresses": (
        f"table IP nat {{ map m {{ type inet_service : TYPE; elements = {{ 84 : ADDRESS }}; }}; {POSTROUTING} "
        "meta mark 9 snat to udp dport map @m; }; }"
    ),
    "expressions in the forward chain": (
        f"table IP filter {{ {FORWARD} ct state vmap {{ invalid : drop, established : accept }}; "
        "fib daddr type broadcast drop; meta mark 9 numgen random mod 8 1 drop; udp length > 60000 drop; "
        "ct mark set 3; rt mtu 9 drop; }; }"
    ),
    "a flowtable": (
        "table IP filter { flowtable ft { hook ingress priority 0; devices = { eth }; }; "
        f"{FORWARD} tcp dport 85 flow add @ft; }}; }}"
    ),
    "a counter and a quota": (
        f"table IP filter {{ counter c {{ }}; quota q {{ over 9000 mbytes; }}; {FORWARD} "
        "counter name c; quota name q drop; }; }"
    ),
    "a chain in lower case": (
        "table IP nat { chain postrouting { type nat hook postrouting priority 100; oifname wan masquerade; }; "
        "chain x { type filter hook output priority 0; meta mark 9 drop; }; }"
    ),
    "another priority in nat": (
        "table IP nat { chain POSTROUTING { type nat hook postrouting priority 90; oifname wan masquerade; }; }"
    ),
    "another priority in filter": (
        "table IP filter { chain FORWARD { type filter hook forward priority -5; meta mark 9 drop; }; }"
    ),
    "a plain chain with the name of iptables'": "table IP nat { chain POSTROUTING { meta mark 9 drop; }; }",
    "a chain at another hook": (
        "table IP filter { chain FORWARD { type filter hook output priority 0; meta mark 9 drop; }; }"
    ),
    "a chain for filters in the table for addresses": (
        "table IP nat { chain POSTROUTING { type filter hook postrouting priority 100; meta mark 9 drop; }; }"
    ),
    "a dormant table": f"table IP nat {{ flags dormant; {POSTROUTING} meta mark 9 drop; }}; }}",
}
"""As the service asks for them: rules of other networks in the chains are not ours."""
MOVES = "meta mark 0x00000011 drop"
"""A rule of another program that comes after our jump, which then moves behind it."""
ADDRESSES = (("ip", "198.51.100.1", "ipv4_addr"), ("ip6", "2001:db8:9::1", "ipv6_addr"))


def native(name: str) -> str:
    """Of both families."""
    return "\n".join(
        NATIVE[name].replace("IP", word).replace("ADDRESS", address).replace("TYPE", kind)
        for word, address, kind in ADDRESSES
    )


@pytest.fixture
async def lab(make_netns: NamespaceMaker, tmp_path: Path) -> AsyncIterator[tuple[Lab, Host]]:
    it = Lab(make_netns)
    with entered(it.host, tmp_path) as host:
        yield it, host


def foreign(host: Host) -> str:
    """The rules of nftables without ours, without counters and handles."""
    text = host.run("nft", "list", "ruleset")
    text = re.sub(r"table ip6? flannelette \{.*?\n\}\n", "", text, flags=re.DOTALL)
    text = re.sub(r"\tchain FLANNEL-\S+ \{.*?\n\t\}\n", "", text, flags=re.DOTALL)
    text = re.sub(r"packets \d+ bytes \d+| used \d+ bytes|# Warning.*", "", text)
    return "\n".join(line for line in text.splitlines() if "FLANNEL" not in line and line.strip())


async def check_packets(lab: Lab) -> None:
    for family in FAMILIES:
        for sender, receiver in PAIRS:
            seen = await source_seen(lab, family, sender, receiver, next(ports))
            assert seen == source_expected(family, sender, receiver, mark=0), f"{sender} to {receiver}"


@pytest.mark.parametrize("name", NATIVE)
async def test_beside_native_rules_in_iptables_own_tables_ours_are_in_force_and_those_stay(
    name: str, lab: tuple[Lab, Host]
) -> None:
    four, host = lab
    for program in ("iptables-nft", "ip6tables-nft"):  # the host's other rules
        host.run(program, "-A", "INPUT", "-p", "tcp", "--dport", "9", "-j", "ACCEPT")
    (host.lock.parent / "native.nft").write_text(native(name))
    if not host.tries("nft", "-f", str(host.lock.parent / "native.nft")):
        assert name == "a flowtable"
        pytest.skip("this kernel has no flowtables (nf_flow_table)")
    before = foreign(host)
    firewall = HostsFirewall("auto", host.lock)
    await put_right(firewall, DUAL_CHAINS)
    await check_packets(four)
    again = HostsFirewall("auto", host.lock)
    assert await put_right(again, DUAL_CHAINS) == []
    await again.close()
    await _damage(host, firewall)
    assert await put_right(firewall, DUAL_CHAINS)
    await check_packets(four)
    await put_right(firewall, NO_CHAINS)
    after = "\n".join(line for line in foreign(host).splitlines() if MOVES not in line)
    assert _without_empty_chains(after) == _without_empty_chains(before)
    await firewall.close()


async def _damage(host: Host, firewall: HostsFirewall) -> None:
    """Another program empties our chains, and puts a rule of its own after one jump and removes the other."""
    if firewall.name == "nftables":
        host.run("nft", "delete table ip flannelette; delete table ip6 flannelette")
        return
    for word in ("ip", "ip6"):
        host.run("nft", f"flush chain {word} nat FLANNEL-POSTRTG; flush chain {word} filter FLANNEL-FWD")
        host.run("nft", f"add rule {word} filter FORWARD {MOVES}")
        listing = host.run("nft", "-a", "list", "chain", word, "nat", "POSTROUTING")
        (handle,) = re.findall(r"jump FLANNEL-POSTRTG.* handle (\d+)", listing)
        host.run("nft", f"delete rule {word} nat POSTROUTING handle {handle}")


def _without_empty_chains(text: str) -> str:
    """iptables-nft makes chains of the kernel's when it needs them."""
    empty = r"\tchain [A-Z]+ \{\n\t\ttype [^\n]*policy accept;\n\t\}\n?"
    return re.sub(r"table \S+ \S+ \{\n\}\n?", "", re.sub(empty, "", text + "\n"))


@pytest.mark.parametrize("rule", ["meta mark { 7, 9 } accept", "counter masquerade", "numgen random mod 2 0 return"])
async def test_a_native_rule_in_our_own_chain_is_one_that_is_not_ours(rule: str, lab: tuple[Lab, Host]) -> None:
    four, host = lab
    firewall = HostsFirewall("iptables", host.lock)
    await put_right(firewall, OUR_WORDS)
    for word in ("ip", "ip6"):
        host.run("nft", f"insert rule {word} nat FLANNEL-POSTRTG {rule}")
    assert await put_right(firewall, OUR_WORDS)
    assert await put_right(firewall, OUR_WORDS) == []
    await check_packets(four)
    await firewall.close()
