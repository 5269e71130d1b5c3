"""The rules of old flannelds are known by their shape, and only as a whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flannelette.services.masq.firewalls.flannelds import BareRule, bare_set
from tests.fakes.saved_tables import bare_rule

NAT = """\
-A POSTROUTING -s 10.5.0.0/16 -d 10.5.0.0/16 -j RETURN
-A POSTROUTING -s 10.5.0.0/16 ! -d 224.0.0.0/4 -j MASQUERADE --random-fully
-A POSTROUTING ! -s 10.5.0.0/16 -d 10.5.27.0/24 -j RETURN
-A POSTROUTING ! -s 10.5.0.0/16 -d 10.5.0.0/16 -j MASQUERADE --random-fully
""".splitlines()
COMMENTED = [
    line.replace(" -j", ' -m comment --comment "flanneld masq" -j').removesuffix(" --random-fully") for line in NAT
]
IPV6 = """\
-A POSTROUTING -s fd00:10:5::/48 -d fd00:10:5::/48 -j RETURN
-A POSTROUTING -s fd00:10:5::/48 ! -d ff00::/8 -j MASQUERADE
-A POSTROUTING ! -s fd00:10:5::/48 -d fd00:10:5:1b::/64 -j RETURN
-A POSTROUTING ! -s fd00:10:5::/48 -d fd00:10:5::/48 -j MASQUERADE
""".splitlines()
FORWARD = ["-A FORWARD -s 10.5.0.0/16 -j ACCEPT", "-A FORWARD -d 10.5.0.0/16 -j ACCEPT"]
FOREIGN = [
    "-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE",
    "-A POSTROUTING -s 10.5.0.0/16 -d 10.5.0.0/16 -p tcp -j RETURN",
    "-A POSTROUTING -s 10.6.0.0/16 -d 10.6.0.0/16 -j RETURN",
    '-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING',
    "-A POSTROUTING ! -s 10.5.0.0/16 -d 10.7.1.0/24 -j RETURN",
    "-A POSTROUTING -j MASQUERADE --to-ports 1024-65535",
]


def places(table: str, lines: list[str]) -> list[int]:
    return bare_set(table, [bare_rule(line) for line in lines])


@pytest.mark.parametrize(
    ("table", "lines"), [("nat", NAT), ("nat", COMMENTED), ("nat", IPV6), ("filter", FORWARD), ("nat", NAT + IPV6)]
)
def test_a_whole_set_is_known(table: str, lines: list[str]) -> None:
    assert places(table, lines) == list(range(len(lines)))


@pytest.mark.parametrize(("table", "lines"), [("nat", NAT), ("filter", FORWARD)])
def test_a_part_of_a_set_may_be_anybodys(table: str, lines: list[str]) -> None:
    for left_out in range(len(lines)):
        assert places(table, lines[:left_out] + lines[left_out + 1 :]) == []


def test_a_set_about_all_addresses_is_never_one() -> None:
    everything = [line.replace("10.5.0.0/16", "0.0.0.0/0") for line in NAT]
    assert places("nat", everything) == []
    anything = [BareRule("0.0.0.0/0", "", "ACCEPT"), BareRule("", "0.0.0.0/0", "ACCEPT")]
    assert bare_set("filter", anything) == []


def test_duplicates_belong_to_the_set() -> None:
    assert places("nat", NAT + NAT[:1]) == [0, 1, 2, 3, 4]


@given(st.permutations([*NAT, *FOREIGN]))
def test_wherever_they_stand_only_they_are_known(lines: list[str]) -> None:
    assert [lines[place] for place in places("nat", lines)] == [line for line in lines if line in NAT]


@given(st.lists(st.sampled_from(NAT), max_size=8), st.lists(st.sampled_from(FOREIGN), max_size=8))
def test_what_is_foreign_is_never_taken(ours: list[str], others: list[str]) -> None:
    lines = [*others, *ours, *others]
    taken = {lines[place] for place in places("nat", lines)}
    assert taken <= set(NAT)
    assert bool(taken) is (set(ours) == set(NAT))


def test_thousands_of_foreign_rules_are_compared_once() -> None:
    foreign = [BareRule(f"172.{16 + n // 65536}.{n // 256 % 256}.{n % 256}/32", "", "ACCEPT") for n in range(20_000)]
    ours = [BareRule("10.5.0.0/16", "", "ACCEPT"), BareRule("", "10.5.0.0/16", "ACCEPT")]
    assert bare_set("filter", [*foreign, *ours]) == [20_000, 20_001]
