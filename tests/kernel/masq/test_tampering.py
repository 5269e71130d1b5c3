"""Legacy tables that somebody else changes too: noticed, put right, and nothing of theirs is lost."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from flannelette.services.core.family import IPV4
from tests.hosts.masq import CHAINS, LEGACY, Host, firewall_of, golden, put_right


@pytest.fixture
async def firewall(host: Host) -> AsyncIterator[Any]:
    it = firewall_of(LEGACY, host)
    yield it
    await it.close()


TAMPERING = {
    "flush of the chain": ["-t nat -F FLANNEL-POSTRTG"],
    "flush of the table": ["-t nat -F"],
    "removal of the chain": ["-t nat -F", "-t nat -X FLANNEL-POSTRTG"],
    "jump deleted": ['-t nat -D POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG'],
    "rule after the jump": ["-t nat -A POSTROUTING -s 192.0.2.0/24 -j ACCEPT"],
    "jump twice": ['-t nat -A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG'],
    "jump without comment": ["-t nat -A POSTROUTING -j FLANNEL-POSTRTG"],
    "goto instead of jump": ["-t nat -R POSTROUTING 1 -g FLANNEL-POSTRTG"],
    "rule deleted": ["-t nat -D FLANNEL-POSTRTG 2"],
    "rule twice": ["-t nat -A FLANNEL-POSTRTG -s 10.5.0.0/16 -j RETURN"],
    "rule appended": ["-t nat -A FLANNEL-POSTRTG -p udp -m multiport --dports 53,123 -j ACCEPT"],
    "rule inserted": ["-t nat -I FLANNEL-POSTRTG -m addrtype --dst-type LOCAL -j RETURN"],
    "order changed": [
        "-t nat -D FLANNEL-POSTRTG 1",
        '-t nat -A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -m comment --comment "flanneld masq" -j RETURN',
    ],
    "match made narrower": [
        '-t nat -R FLANNEL-POSTRTG 5 -o eth0 -s 10.5.0.0/16 ! -d 224.0.0.0/4 -m comment --comment "flanneld masq" '
        "-j MASQUERADE --random-fully"
    ],
    "option of the target dropped": [
        '-t nat -R FLANNEL-POSTRTG 5 -s 10.5.0.0/16 ! -d 224.0.0.0/4 -m comment --comment "flanneld masq" '
        "-j MASQUERADE"
    ],
    "forward jump behind a drop": [
        '-D FORWARD -m comment --comment "flanneld forward" -j FLANNEL-FWD',
        "-A FORWARD -j DROP",
        '-A FORWARD -m comment --comment "flanneld forward" -j FLANNEL-FWD',
    ],
    "forward chain emptied": ["-F FLANNEL-FWD"],
}


@pytest.mark.parametrize("name", TAMPERING)
async def test_tampering_is_noticed_and_put_right(name: str, host: Host, firewall: Any) -> None:
    """A regression test of defect 11 of flannel v0.28."""
    await put_right(firewall)
    host.iptables(*TAMPERING[name])
    states = await firewall.check(CHAINS, repair=False)
    assert any(state.causes for state in states)
    assert not all(state.as_wanted for state in states)
    assert await put_right(firewall)
    ours = [line for line in host.save() if "FLANNEL" in line]
    assert ours == [line for line in golden("ipv4") if "FLANNEL" in line]
    assert host.rules("POSTROUTING")[-1].endswith("FLANNEL-POSTRTG")
    assert host.rules("FORWARD", "filter")[0].endswith("FLANNEL-FWD")


STRANGE = [
    ["-m", "comment", "--comment", "a \"quote and an 'apostrophe", "-j", "ACCEPT"],
    ["-m", "comment", "--comment", "caf\u00e9 -- --comment ! x", "-j", "ACCEPT"],
    ["-m", "comment", "--comment", "x" * 255, "-j", "ACCEPT"],
    ["-m", "u32", "--u32", "6&0xFF=1", "-j", "ACCEPT"],
    ["-m", "string", "--algo", "bm", "--hex-string", "|00 22 0a|", "-j", "ACCEPT"],
    ["-m", "recent", "--name", "x y", "--set"],
    ["-m", "conntrack", "--ctstate", "NEW", "-m", "limit", "--limit", "1/s", "-j", "RETURN"],
    ["-m", "bpf", "--bytecode", "4,48 0 0 9,21 0 1 6,6 0 0 1,6 0 0 0", "-j", "ACCEPT"],
    ["-j", "LOG", "--log-prefix", 'it\'s "me" '],
    ["-j", "SNAT", "--to-source", "192.0.2.1-192.0.2.9", "--persistent"],
    ["-j", "MASQUERADE"],
    ["-p", "tcp", "-j", "MASQUERADE", "--to-ports", "1024-2048"],
    ["-i", "eth+", "!", "-f", "-j", "KUBE"],
    [],
]


@pytest.mark.parametrize("strange", STRANGE, ids=lambda words: " ".join(words)[:30] or "nothing")
async def test_no_rule_of_others_in_our_chain_or_beside_our_jump_is_too_strange(
    strange: list[str], host: Host, firewall: Any
) -> None:
    host.iptables("-t nat -N KUBE")
    await put_right(firewall)
    placed = 0
    for chain in ("FLANNEL-POSTRTG", "POSTROUTING"):
        placed += host.tries("iptables-legacy", "-w", "-t", "nat", "-A", chain, *strange)
    if not placed:
        pytest.skip("this kernel or this chain does not take such a rule")
    assert await put_right(firewall)
    assert [line for line in host.save() if "A FLANNEL" in line] == [
        line for line in golden("ipv4") if "A FLANNEL" in line
    ]
    (place,) = [i for i, rule in enumerate(host.rules("POSTROUTING")) if rule.endswith("-j FLANNEL-POSTRTG")]
    decides_nothing = set(strange) & {"--comment", "LOG"}
    assert place == len(host.rules("POSTROUTING")) - (2 if decides_nothing else 1)
    assert firewall.worker_pids[IPV4]


async def test_a_writer_who_takes_the_lock_loses_nothing(host: Host, firewall: Any) -> None:
    await put_right(firewall)
    script = "for i in $(seq 40); do iptables-legacy -w -t nat -A POSTROUTING -s 192.0.2.$i -j ACCEPT || exit 1; done"
    writer = host.start("sh", "-c", script)
    repairs = 0
    while writer.poll() is None:
        repairs += bool(await put_right(firewall))
    assert writer.returncode == 0
    await put_right(firewall)
    rules = host.rules("POSTROUTING")
    assert repairs > 1
    assert rules[-1].endswith("-j FLANNEL-POSTRTG")
    assert [f"-A POSTROUTING -s 192.0.2.{i}/32 -j ACCEPT" for i in range(1, 41)] == rules[:-1]
    assert len(rules) == 41
