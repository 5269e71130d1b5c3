"""`subnet.env`: to the byte as flannel writes it, and read whatever is in it."""

import os
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path

import pytest

from flannelette.services.core.leases.lease import Lease, Subnet
from flannelette.services.dataplane.node.subnet_file import (
    SubnetFile,
    read_previous_subnets,
    subnet_file,
    what_pods_keep,
    write_subnet_file,
)
from tests import paths
from tests.examples.leases import DUAL_JSON, SMALL_JSON, network

GOLDEN = paths.GOLDEN / "dataplane"


def lease(*cidrs: str) -> Lease:
    return Lease("name", "n1", tuple(Subnet(ip_network(cidr)) for cidr in cidrs))


SINGLE = subnet_file(network(SMALL_JSON), lease("10.5.27.0/24"), 1450, ip_masq=True)
DUAL = subnet_file(network(DUAL_JSON), lease("10.5.27.0/24", "fd00:10:5:1b::/64"), 1430, ip_masq=False)


@pytest.mark.parametrize(("content", "name"), [(SINGLE, "subnet.env"), (DUAL, "subnet-dual-stack.env")])
def test_the_text_is_flannels(content: SubnetFile, name: str) -> None:
    assert content.text() == (GOLDEN / name).read_text()


def test_the_file_and_its_directory_are_for_everybody_to_read_whatever_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "run" / "flannel" / "subnet.env"
    before = os.umask(0o077)
    try:
        assert write_subnet_file(path, SINGLE)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o644
    assert path.parent.stat().st_mode & 0o777 == 0o755
    assert [each.name for each in path.parent.iterdir()] == ["subnet.env"]


def test_a_file_that_says_the_same_is_left_alone_and_another_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "subnet.env"
    assert write_subnet_file(path, SINGLE)
    first = path.stat().st_ino
    assert not write_subnet_file(path, SINGLE)
    assert path.stat().st_ino == first
    with path.open() as reader:
        assert write_subnet_file(path, DUAL)
        assert reader.read() == SINGLE.text()
    assert path.read_text() == DUAL.text()


def test_a_file_that_is_no_text_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "subnet.env"
    path.write_bytes(b"\xff\xfe\0")
    assert write_subnet_file(path, SINGLE)
    assert path.read_text() == SINGLE.text()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SINGLE.text(), ["10.5.27.0/24"]),
        (DUAL.text(), ["10.5.27.0/24", "fd00:10:5:1b::/64"]),
        ("\n\nnonsense\n=\nFLANNEL_SUBNET=10.5.27.1/24\r\n# FLANNEL_SUBNET=x\n", ["10.5.27.0/24"]),
        ('FLANNEL_SUBNET="10.5.27.1/24"\n', ["10.5.27.0/24"]),
        ("FLANNEL_SUBNET=10.5.27.1/24,10.5.28.1/24\n", []),
        ("FLANNEL_SUBNET=10.5.27.1/24,10.5.28.1/24\nFLANNEL_IPV6_SUBNET=fd00::1/64\n", ["fd00::/64"]),
        ("FLANNEL_SUBNET=10.5.27.1\n", []),
        ("FLANNEL_SUBNET=fd00::1/64\nFLANNEL_IPV6_SUBNET=10.5.27.1/24\n", []),
        ("FLANNEL_SUBNET=10.5.27.1/99\n", []),
        ("FLANNEL_SUBNET=\nOTHER=10.5.27.1/24\n", []),
        ("FLANNEL_SUBNET=10.5.26.1/24\nFLANNEL_SUBNET=10.5.27.1/24\n", ["10.5.27.0/24"]),
        ("\0\0\0", []),
        ("", []),
    ],
)
def test_reading_back_takes_what_is_usable(tmp_path: Path, text: str, expected: list[str]) -> None:
    path = tmp_path / "subnet.env"
    path.write_text(text)
    assert [str(cidr) for cidr in read_previous_subnets(path)] == expected


def test_no_file_and_no_text_say_nothing(tmp_path: Path) -> None:
    assert read_previous_subnets(tmp_path / "absent") == ()
    assert read_previous_subnets(tmp_path) == ()
    (tmp_path / "binary").write_bytes(b"\xff\xfeFLANNEL_SUBNET=\xff\n")
    assert read_previous_subnets(tmp_path / "binary") == ()


def test_what_running_pods_keep_is_what_changes_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "subnet.env"
    assert what_pods_keep(path, SINGLE) == []
    write_subnet_file(path, SINGLE)
    assert what_pods_keep(path, SINGLE) == []
    assert what_pods_keep(path, replace(SINGLE, ip_masq=not SINGLE.ip_masq)) == []
    assert what_pods_keep(path, replace(SINGLE, mtu=1380)) == [f"FLANNEL_MTU={SINGLE.mtu}"]
