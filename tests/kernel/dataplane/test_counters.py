"""What the kernel has counted on interfaces, whatever these are called."""

import socket
import subprocess

from flannelette.services.dataplane.links.interfaces import read_counters
from tests.hosts.namespaces import NetworkNamespace


def test_a_name_that_is_no_text_hides_no_other_interface(netns: NetworkNamespace) -> None:
    with netns.inside():
        subprocess.run(["ip", "link", "add", b"odd\xff", "type", "veth", "peer", "name", b"end\xc2\x85"], check=True)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"x", ("127.0.0.1", 9))
        counted = read_counters()
    assert {"lo", "odd\ufffd", "end\x85"} <= counted.keys()
    assert counted["lo"].sent_packets > 0
