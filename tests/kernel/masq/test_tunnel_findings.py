"""What drops the tunnels of the other backends, as their packets look: no kernel module is needed for that."""

import re
from ipaddress import ip_address

import pytest

from flannelette.services.core.network import parse_network
from flannelette.services.masq.diagnose.flows import Peer, Surroundings, tunnel_of
from flannelette.services.masq.diagnose.host_checks import findings
from flannelette.services.masq.firewalls.detect import HostProbe
from tests.findings.tunnel_rows import TUNNEL_FAULTS
from tests.findings.words import words
from tests.hosts.masq import SETTINGS, Host
from tests.hosts.two_hosts import EXAMPLES

OPTIONS = {"ipsec": f',"PSK":"{"0123456789abcdef" * 6}"'}


@pytest.mark.parametrize("name", TUNNEL_FAULTS)
def test_a_firewall_that_drops_the_tunnel_of_a_backend_is_named(name: str, host: Host) -> None:
    fault = TUNNEL_FAULTS[name]
    options = f'{{"Type":"{fault.backend}"{OPTIONS.get(fault.backend, "")}}}'
    around = Surroundings((Peer(ip_address("10.99.0.12"), "eth0", ip_address("10.99.0.11")),))
    tunnel = tunnel_of(parse_network(f'{{"Network":"10.5.0.0/16","Backend":{options}}}'), "", around)
    probe = HostProbe()
    try:
        host.run("sh", "-c", fault.act.format_map(words(*EXAMPLES[4])))
        (found,) = findings(probe.checks(), "nftables", [], SETTINGS, tunnel)
        said = (found.check, found.problem, found.cure.partition("  # ")[0])
        assert said == (fault.check, fault.problem, fault.cure)
        assert re.fullmatch(re.escape(fault.cause).replace(r"\*", ".*") + ".*", found.cause)
        if "firewall-cmd" not in fault.cure:
            host.run("sh", "-c", found.cure)
            assert not findings(probe.checks(), "nftables", [], SETTINGS, tunnel)
    finally:
        probe.close()
