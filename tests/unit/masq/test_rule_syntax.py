"""The rules in iptables' notation, compared with text that a network engineer can read."""

from ipaddress import ip_network

import pytest

from flannelette.services.core.family import IPV4, IPV6, Family
from flannelette.services.core.network import parse_network
from flannelette.services.masq.firewalls.iptables import chain_form
from flannelette.services.masq.rules import Chain, RuleSettings, wanted_chains
from tests import paths

GOLDEN = paths.GOLDEN / "masq"
NETWORK = parse_network(
    '{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:10:5::/48","Backend":{"Type":"vxlan"}}'
)
SUBNETS = (ip_network("10.5.27.0/24"), ip_network("fd00:10:5:1b::/64"))


def chains_of(family: Family, *, leased: bool = True, fully_random: bool = True) -> tuple[Chain, ...]:
    settings = RuleSettings(masquerade=True, forward=True, fully_random=fully_random)
    chains = wanted_chains(NETWORK, SUBNETS if leased else (), settings)
    return tuple(chain for chain in chains if chain.family is family)


def save_text(chains: tuple[Chain, ...]) -> str:
    """The chains of one family as `iptables-save` shows a machine that has nothing else."""
    lines: list[str] = []
    for table in sorted({chain.table for chain in chains}):
        ours = [chain_form(chain) for chain in chains if chain.table == table and chain.rules]
        lines.append(f"*{table}")
        lines += [f":{form.name} - [0:0]" for form in ours]
        lines += [form.jump.text for form in ours]
        lines += [rule.text for form in ours for rule in form.rules]
        lines.append("COMMIT")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("name", "chains"),
    [
        ("ipv4", chains_of(IPV4)),
        ("ipv6", chains_of(IPV6)),
        ("ipv4-plain", chains_of(IPV4, fully_random=False)),
        ("ipv4-forward-only", chains_of(IPV4, leased=False)),
    ],
)
def test_the_rules_read_as_iptables_save_shows_them(name: str, chains: tuple[Chain, ...]) -> None:
    assert save_text(chains) == (GOLDEN / f"{name}.txt").read_text()


def test_all_but_one_rule_of_a_captured_flanneld_are_ours_too() -> None:
    captured = {line for line in (GOLDEN / "flanneld-v0.20.txt").read_text().splitlines() if line.startswith("-A")}
    ours = set(save_text(chains_of(IPV4)).splitlines())
    assert captured - ours == {
        '-A FLANNEL-POSTRTG -s 10.5.0.0/16 -d 10.5.0.0/16 -m comment --comment "flanneld masq" -j RETURN'
    }


def test_our_chains_are_those_of_the_newer_flanneld() -> None:
    def chain(text: str) -> list[str]:
        return [line for line in text.splitlines() if line.startswith("-A FLANNEL-")]

    assert chain(save_text(chains_of(IPV4))) == chain((GOLDEN / "flanneld-v0.28.txt").read_text())


def test_the_dictionaries_are_those_that_iptc_decodes() -> None:
    nat = chain_form(chains_of(IPV4)[0])
    assert nat.jump.form == {"comment": {"comment": "flanneld masq"}, "target": "FLANNEL-POSTRTG"}
    assert nat.rules[0].form == {
        "mark": {"mark": "0x4000/0x4000"},
        "comment": {"comment": "flanneld masq"},
        "target": "RETURN",
    }
    assert nat.rules[4].form == {
        "src": "10.5.0.0/16",
        "dst": "!224.0.0.0/4",
        "comment": {"comment": "flanneld masq"},
        "target": {"MASQUERADE": {"random-fully": ""}},
    }
