"""The namespaces that the other tests stand on."""

import socket
import subprocess
from pathlib import Path

import pytest

from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace
from tests.patience import PATIENCE


def test_a_fresh_namespace_has_only_loopback_and_it_is_up(netns: NetworkNamespace) -> None:
    lines = netns.ip("-oneline", "link").splitlines()
    assert [line.split(":")[1].strip() for line in lines] == ["lo"]
    assert "LOOPBACK,UP" in lines[0]


def test_the_tests_do_not_see_the_machines_interfaces() -> None:
    names = [name for _, name in socket.if_nameindex()]
    assert "eth0" not in names
    assert Path("/run").is_mount()
    assert not Path("/run/lock").exists(), "every Debian has it; what a test runs here may well make others"


def test_two_connected_namespaces_talk(make_netns: NamespaceMaker) -> None:
    left, right = make_netns(), make_netns()
    make_netns.connect(left, "10.9.0.1/24", right, "10.9.0.2/24")
    with right.inside():
        server = socket.create_server(("10.9.0.2", 7))
    with left.inside():
        client = socket.create_connection(("10.9.0.2", 7), timeout=PATIENCE)
    accepted, peer = server.accept()
    assert peer[0] == "10.9.0.1"
    for each in (server, client, accepted):
        each.close()


def test_a_thread_comes_back_from_a_namespace_also_after_an_error(netns: NetworkNamespace) -> None:
    here = Path("/proc/thread-self/ns/net").readlink()
    with netns.inside():
        assert Path("/proc/thread-self/ns/net").readlink() != here
    with pytest.raises(InterruptedError), netns.inside():
        raise InterruptedError
    assert Path("/proc/thread-self/ns/net").readlink() == here


def test_a_command_runs_inside_and_its_complaint_is_shown(netns: NetworkNamespace) -> None:
    assert "lo" in netns.run("ip", "link")
    with pytest.raises(subprocess.CalledProcessError) as caught:
        netns.ip("link", "show", "eth9")
    assert "eth9" in caught.value.__notes__[0]
