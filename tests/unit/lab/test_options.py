import subprocess
import sys
from pathlib import Path

import pytest

from lab.options import BadOption, Options, parse
from tests.paths import ROOT


def test_without_settings_the_lab_is_three_vxlan_hosts_with_the_embedded_store() -> None:
    assert parse([], {}) == Options(nodes=3, backend="vxlan", store="embedded", once=False, json=None)


def test_the_environment_is_read_as_make_gives_it_and_empty_means_unset(tmp_path: Path) -> None:
    figures = str(tmp_path / "lab.json")
    environment = {"NODES": "5", "BACKEND": "host-gw", "STORE": "etcd", "FAMILY": "dual", "VM": "1"}
    environment |= {"ONCE": "1", "PYTHON": "x", "JSON": figures}
    assert parse([], environment) == Options(5, "host-gw", "etcd", "dual", vm=True, once=True, json=Path(figures))
    assert parse([], dict.fromkeys(environment, "")) == Options()


def test_an_argument_wins_over_the_environment() -> None:
    assert parse(["NODES=2"], {"NODES": "5"}).nodes == 2


_OPTIONS = (
    "NODES=, BACKEND=, FAMILY=, STORE=, PROCESS=, VM=, ONCE=, JSON=, TOPOLOGY=, CLUSTERS=, NETWORKS=, PATH_MTU="
)


@pytest.mark.parametrize(
    ("argument", "complaint"),
    [
        ("NODES=0", "NODES=0: use a whole number from 1 to 200"),
        ("NODES=201", "NODES=201: use a whole number from 1 to 200"),
        ("NODES=-1", "NODES=-1: use a whole number from 1 to 200"),
        ("NODES=three", "NODES=three: use a whole number from 1 to 200"),
        ("NODES=٣", "NODES=٣: use a whole number from 1 to 200"),
        ("BACKEND=foo", "BACKEND=foo: use vxlan, host-gw, ipip, wireguard, udp, ipsec or aws-vpc"),
        ("BACKEND=VXLAN", "BACKEND=VXLAN: use vxlan, host-gw, ipip, wireguard, udp, ipsec or aws-vpc"),
        ("STORE=x", "STORE=x: use embedded or etcd"),
        ("FAMILY=6", "FAMILY=6: use ipv4, ipv6 or dual"),
        ("ONCE=yes", "ONCE=yes: use 1 or 0"),
        ("VM=kvm", "VM=kvm: use 1 or 0"),
        ("TOPOLOGY=lab.png", "TOPOLOGY=lab.png: name a file that ends in .svg, .dot, .mmd, .txt or .json"),
        (
            "TOPOLOGY=/run/x.svg",
            "TOPOLOGY=/run/x.svg: the lab has a /run of its own, name a file in another directory",
        ),
        ("CLUSTERS=5", "CLUSTERS=5: use a whole number from 1 to 4"),
        ("NETWORKS=5", "NETWORKS=5: use a whole number from 1 to 4"),
        ("PATH_MTU=1500", "PATH_MTU=1500: use a whole number from 1280 to 1499"),
        ("PATH_MTU=0", "PATH_MTU=0: use a whole number from 1280 to 1499"),
        ("JSON=lab.json", "JSON needs ONCE=1: only a trial has figures to write"),
        (
            "NODE=3",
            f"'NODE=3' is no option of the lab: use {_OPTIONS}",
        ),
        ("up", f"'up' is no option of the lab: use {_OPTIONS}"),
    ],
)
def test_a_wrong_option_gets_one_line_that_says_what_is_right(argument: str, complaint: str) -> None:
    with pytest.raises(BadOption) as caught:
        parse([argument], {})
    assert str(caught.value) == complaint


@pytest.mark.parametrize("other", ["STORE=etcd", "NODES=1", "CLUSTERS=2"])
def test_a_cloud_is_one_cluster_of_several_hosts_with_the_embedded_store(other: str) -> None:
    assert parse(["BACKEND=aws-vpc"], {}).backend == "aws-vpc"
    with pytest.raises(BadOption, match="one cluster of at least 2 hosts with STORE=embedded"):
        parse(["BACKEND=aws-vpc", other], {})
    with pytest.raises(BadOption, match="aws-vpc carries IPv4 only"):
        parse(["BACKEND=aws-vpc", "FAMILY=dual"], {})


def test_figures_cannot_be_written_into_a_directory_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="there is no directory"):
        parse(["ONCE=1", f"JSON={tmp_path}/missing/lab.json"], {})


def test_figures_cannot_be_written_over_a_directory(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="is a directory: name a file"):
        parse(["ONCE=1", f"JSON={tmp_path}"], {})


def test_figures_would_vanish_with_the_labs_own_run_directory() -> None:
    with pytest.raises(BadOption, match="the lab has a /run of its own"):
        parse(["ONCE=1", "JSON=/run/lab.json"], {})


def test_clusters_have_a_router_between_and_two_hundred_hosts_together() -> None:
    assert parse(["CLUSTERS=2", "NODES=100"], {}).clusters == 2
    for words, complaint in ((["BACKEND=host-gw"], "one layer 2"), (["NODES=101"], "use fewer NODES")):
        with pytest.raises(BadOption, match=complaint):
            parse(["CLUSTERS=2", *words], {})


def test_networks_of_a_host_have_names_and_a_backend_that_can_be_there_twice() -> None:
    assert parse(["NETWORKS=1"], {}).networks == ("",)
    assert parse(["NETWORKS=2", "BACKEND=host-gw"], {}).networks == ("blue", "red")
    with pytest.raises(BadOption, match="NETWORKS=2: use BACKEND=vxlan, host-gw, wireguard or udp, of which"):
        parse(["NETWORKS=2", "BACKEND=ipip"], {})
    for word in ("CLUSTERS=2", "TOPOLOGY=lab.svg"):
        with pytest.raises(BadOption, match=f"NETWORKS=2 with {word}: the lab has no such pair, leave one out"):
            parse(["NETWORKS=2", word], {})


@pytest.mark.parametrize("program", ["lab", "lab.simulate", "lab.chaos"])
def test_a_python_without_the_packages_gets_one_line_with_the_way_out(program: str) -> None:
    command = [sys.executable, "-S", "-m", program, "NODES=1"]  # -S: without what is installed
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert len(ran.stderr.splitlines()) == 1
    assert ran.stderr.endswith(f"or .venv/bin/python -m {program}\n")


def test_one_process_on_each_host_has_an_etcd() -> None:
    assert parse(["PROCESS=one"], {}).store == "etcd"
    assert parse(["PROCESS=separate"], {}) == parse([], {})
    for word in ("STORE=embedded", "NETWORKS=2", "CLUSTERS=2"):
        with pytest.raises(BadOption, match="PROCESS=one: a host's lease service is in it, use STORE=etcd with one"):
            parse(["PROCESS=one", word], {})


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["CLUSTERS=2"], "the lab has a narrow path in one cluster of at least 2 hosts with one network"),
        (["NETWORKS=2"], "the lab has a narrow path in one cluster of at least 2 hosts with one network"),
        (["NODES=1"], "the lab has a narrow path in one cluster of at least 2 hosts with one network"),
        (["BACKEND=ipsec"], "no route of ipsec follows a path, use BACKEND=vxlan"),
        (["FAMILY=dual"], "IPv6 needs 1280 bytes in the overlay, use 1360 or FAMILY=ipv4"),
    ],
)
def test_a_narrow_path_is_refused_where_the_lab_cannot_show_it(arguments: list[str], complaint: str) -> None:
    with pytest.raises(BadOption) as caught:
        parse(["PATH_MTU=1300", *arguments], {})
    assert str(caught.value) == f"PATH_MTU=1300: {complaint}"
    assert parse(["PATH_MTU=1300"], {}).path_mtu == 1300
