"""What masq makes of other networks of the host, of which the kernel cannot tell now."""

from flannelette.services.core.network import parse_network
from flannelette.services.masq.main import refusal_by_others
from flannelette.services.runtime.os.names import Claims
from tests.faults.descriptors import without_descriptors


def test_a_network_waits_while_nobody_can_say_whether_another_has_its_range() -> None:
    network = parse_network('{"Network": "10.5.0.0/16"}')
    with Claims("masq", "blue") as claims:
        with without_descriptors():
            reason = refusal_by_others(claims, network)
        assert "Too many open files" in reason
        assert refusal_by_others(claims, network) == ""
