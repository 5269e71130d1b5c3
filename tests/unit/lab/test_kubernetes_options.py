import pytest

from lab.kubernetes.options import Options, parse
from lab.options import BadOption


def test_without_settings_the_cluster_is_three_vxlan_nodes_by_the_overlay_per_node() -> None:
    assert parse([], {}) == Options(3, "per-node", "vxlan", "ipv4", "iptables")
    assert not parse([], {}).flannel
    assert not parse([], {}).once


def test_the_environment_is_read_as_make_gives_it_and_empty_means_unset() -> None:
    chosen = Options(
        2,
        "per-node",
        "host-gw",
        "dual",
        "nftables",
        "kube-router",
        "iptables-legacy",
        flannel=True,
        vm=True,
        once=True,
    )
    environment = {
        "NODES": "2",
        "OVERLAY": "per-node",
        "BACKEND": "host-gw",
        "FAMILY": "dual",
        "PROXY": "nftables",
        "POLICY": "kube-router",
        "FIREWALL": "iptables-legacy",
        "FLANNEL": "1",
        "VM": "1",
        "ONCE": "1",
    }
    assert parse([], {**environment, "PYTHON": "x"}) == chosen
    assert parse([], dict.fromkeys(environment, "")) == Options()


def test_an_argument_wins_over_the_environment() -> None:
    assert parse(["NODES=2"], {"NODES": "5"}).nodes == 2


@pytest.mark.parametrize(
    ("argument", "complaint"),
    [
        ("NODES=0", "NODES=0: use a whole number from 1 to 10"),
        ("NODES=11", "NODES=11: use a whole number from 1 to 10"),
        ("OVERLAY=chart", "OVERLAY=chart: use per-node, central or helm"),
        ("BACKEND=foo", "BACKEND=foo: use vxlan or host-gw"),
        ("FAMILY=ipv5", "FAMILY=ipv5: use ipv4, ipv6 or dual"),
        ("PROXY=ipvs", "PROXY=ipvs: use iptables or nftables"),
        ("POLICY=calico", "POLICY=calico: use kube-router or kube-network-policies"),
        ("FIREWALL=iptables", "FIREWALL=iptables: use iptables-nft, iptables-legacy or nftables"),
        ("FLANNEL=v0.28", "FLANNEL=v0.28: use 1 or 0"),
        ("VM=yes", "VM=yes: use 1 or 0"),
        ("ONCE=yes", "ONCE=yes: use 1 or 0"),
        (
            "STORE=etcd",
            "'STORE=etcd' is no option of the lab: "
            "use NODES=, OVERLAY=, BACKEND=, FAMILY=, PROXY=, POLICY=, FIREWALL=, FLANNEL=, VM=, ONCE=",
        ),
    ],
)
def test_a_wrong_option_gets_one_line_that_says_what_is_right(argument: str, complaint: str) -> None:
    with pytest.raises(BadOption) as caught:
        parse([argument], {})
    assert str(caught.value) == complaint


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (
            ["POLICY=kube-router", "NODES=1"],
            "POLICY=kube-router: use NODES=2 or more, between whose pods it is tried",
        ),
        (["FIREWALL=nftables", "OVERLAY=helm"], "FIREWALL=nftables: use OVERLAY=per-node or central"),
    ],
)
def test_settings_that_do_not_go_together_get_one_line(arguments: list[str], complaint: str) -> None:
    with pytest.raises(BadOption) as caught:
        parse(arguments, {})
    assert str(caught.value) == complaint


def test_kube_flannel_is_not_replaced_by_central_lease_services_in_one_step() -> None:
    with pytest.raises(BadOption, match="per-node or helm first"):
        parse(["FLANNEL=1", "OVERLAY=central"], {})


def test_what_the_cluster_has_addresses_of_is_led_by_the_api_servers_family() -> None:
    assert [parse([f"FAMILY={family}"], {}).versions for family in ("ipv4", "ipv6", "dual")] == [(4,), (6,), (4, 6)]
