"""Taking over from an old flanneld, whose rules stand straight in the kernel's chains, in both kinds of iptables."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from services.masq.firewalls.firewall import Firewall
from services.masq.firewalls.iptables import IptablesFirewall
from services.masq.firewalls.iptables_nft import IptablesNftFirewall
from tests.kernel.masq_host import DUAL_CHAINS, Host, entered, put_right
from tests.namespaces import NetworkNamespace

V0_12 = """\
*nat
-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE
-A POSTROUTING -s 10.5.0.0/16 -d 10.5.0.0/16 -j RETURN
-A POSTROUTING -s 10.5.0.0/16 ! -d 224.0.0.0/4 -j MASQUERADE{random}
-A POSTROUTING ! -s 10.5.0.0/16 -d 10.5.27.0/24 -j RETURN
-A POSTROUTING ! -s 10.5.0.0/16 -d 10.5.0.0/16 -j MASQUERADE{random}
-A POSTROUTING -s 10.6.0.0/16 -d 10.6.0.0/16 -j RETURN
COMMIT
*filter
:FORWARD DROP
-A FORWARD -i docker0 -j ACCEPT
-A FORWARD -s 10.5.0.0/16 -j ACCEPT
-A FORWARD -d 10.5.0.0/16 -j ACCEPT
COMMIT
"""
KINDS: dict[str, Callable[[Path], Firewall]] = {"legacy": IptablesFirewall, "nft": lambda _: IptablesNftFirewall()}


@pytest.fixture
def host(netns: NetworkNamespace, tmp_path: Path) -> Iterator[Host]:
    with entered(netns, tmp_path) as it:
        yield it


@pytest.fixture(params=KINDS)
async def firewall(request: pytest.FixtureRequest, host: Host) -> AsyncIterator[Firewall]:
    it = KINDS[request.param](host.lock)
    yield it
    await it.close()


def rules(host: Host, firewall: Firewall, table: str, chain: str) -> list[str]:
    lines = host.run(firewall.name, "-t", table, "-S", chain).splitlines()
    return [line.split(" ", 2)[2] for line in lines if line.startswith("-A")]


@pytest.mark.parametrize("random", ["", " --random-fully"])
async def test_the_bare_rules_of_v0_12_go_in_the_transaction_that_brings_ours(
    host: Host, firewall: Firewall, random: str
) -> None:
    host.run(f"{firewall.name}-restore", stdin=V0_12.format(random=random))
    states = await firewall.check(DUAL_CHAINS, repair=True)
    assert [state.as_wanted for state in states] == [True] * 4
    assert "rules of an old flanneld" in states[0].causes
    assert rules(host, firewall, "nat", "POSTROUTING") == [
        '-m comment --comment "flanneld masq" -j FLANNEL-POSTRTG',
        "-s 172.17.0.0/16 ! -o docker0 -j MASQUERADE",
        "-s 10.6.0.0/16 -d 10.6.0.0/16 -j RETURN",
    ]
    assert rules(host, firewall, "filter", "FORWARD") == [
        '-m comment --comment "flanneld forward" -j FLANNEL-FWD',
        "-i docker0 -j ACCEPT",
    ]
    assert await put_right(firewall, DUAL_CHAINS) == []


async def test_they_go_too_where_a_later_flanneld_has_left_them_beside_its_chains(
    host: Host, firewall: Firewall
) -> None:
    await put_right(firewall, DUAL_CHAINS)
    host.run(f"{firewall.name}-restore", "--noflush", stdin=V0_12.format(random="").replace(":FORWARD DROP\n", ""))
    again = type(firewall)(host.lock) if isinstance(firewall, IptablesFirewall) else IptablesNftFirewall()
    await put_right(again, DUAL_CHAINS)
    assert len(rules(host, firewall, "nat", "POSTROUTING")) == 3
    await again.close()


async def test_a_preview_names_each_of_them(host: Host, firewall: Firewall) -> None:
    host.run(f"{firewall.name}-restore", stdin=V0_12.format(random=""))
    states = await firewall.check(DUAL_CHAINS, repair=False)
    deleted = [command.split(" -D ")[1] for state in states[:2] for command in state.commands if " -D " in command]
    assert deleted == ["POSTROUTING 5", "POSTROUTING 4", "POSTROUTING 3", "POSTROUTING 2", "FORWARD 3", "FORWARD 2"]
