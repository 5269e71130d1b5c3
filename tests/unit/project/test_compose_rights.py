"""The comparison of a container's rights with its list: each thing that is too much is found."""

import copy
from typing import Any

import pytest

from tests.compose.rights import excess

STATUS = "CapBnd:\t0000000000003000\nNoNewPrivs:\t1\n"
MASQ: dict[str, Any] = {
    "Config": {"User": "0:10001"},
    "HostConfig": {
        "CapAdd": ["CAP_NET_ADMIN", "NET_RAW"],
        "CapDrop": ["ALL"],
        "Privileged": False,
        "ReadonlyRootfs": True,
        "SecurityOpt": ["no-new-privileges:true"],
        "Devices": None,
        "PidMode": "",
        "IpcMode": "private",
        "NetworkMode": "container:1",
        "Binds": None,
    },
    "Mounts": [{"Type": "volume", "RW": True}, {"Type": "bind", "RW": False}],
}


def test_what_is_listed_is_not_too_much() -> None:
    assert excess("h1-masq", MASQ, STATUS) == []


@pytest.mark.parametrize("service", ["h1", "h12-charon", "pod3"])
def test_the_rights_of_one_service_are_too_much_for_another(service: str) -> None:
    assert excess(service, MASQ, STATUS) == [
        f"{service}: capabilities ['NET_ADMIN', 'NET_RAW']",
        f"{service}: its process has more capabilities than it was given",
    ]


@pytest.mark.parametrize("service", ["lease", "h1-lease", "etcd", "outside"])
def test_a_service_without_rights_may_not_even_be_root(service: str) -> None:
    assert f"{service}: user '0:10001'" in excess(service, MASQ, STATUS)


def test_a_service_that_nobody_listed_is_an_error() -> None:
    with pytest.raises(KeyError):
        excess("h1-something", MASQ, STATUS)


@pytest.mark.parametrize(
    ("section", "change", "said"),
    [
        ("Config", {"User": ""}, "user ''"),
        ("HostConfig", {"CapDrop": None}, "it keeps capabilities of docker's own choice"),
        ("HostConfig", {"Privileged": True}, "it is privileged"),
        ("HostConfig", {"ReadonlyRootfs": False}, "its root file system is writable"),
        ("HostConfig", {"SecurityOpt": None}, "it may gain privileges"),
        ("HostConfig", {"Devices": [{"PathOnHost": "/dev/net/tun"}]}, "it has devices"),
        ("HostConfig", {"PidMode": "host"}, "it shares the machine's processes"),
        ("HostConfig", {"NetworkMode": "host"}, "it is in the machine's network"),
    ],
)
def test_each_setting_of_the_engine_is_looked_at(section: str, change: dict[str, Any], said: str) -> None:
    inspected = copy.deepcopy(MASQ)
    inspected[section] |= change
    assert excess("h1-masq", inspected, STATUS) == [f"h1-masq: {said}"]


def test_a_writable_part_of_the_machine_is_found() -> None:
    inspected = copy.deepcopy(MASQ)
    inspected["Mounts"] = [{"Type": "bind", "RW": True}]
    assert excess("h1-masq", inspected, STATUS) == ["h1-masq: bind mounts None"]


def test_what_the_process_really_has_counts_too() -> None:
    assert excess("h1-masq", MASQ, "CapBnd:\t000001ffffffffff\nNoNewPrivs:\t0\n") == [
        "h1-masq: its process has more capabilities than it was given",
        "h1-masq: its process may gain privileges",
    ]
