"""What masq makes of other networks of the host, of which the kernel cannot tell now."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager

from flannelette.services.core.network import parse_network
from flannelette.services.masq.main import refusal_by_others
from flannelette.services.runtime.os.claims import Claims


@contextmanager
def without_descriptors() -> Iterator[None]:
    """No file and no socket can be opened."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_network_waits_while_nobody_can_say_whether_another_has_its_range() -> None:
    network = parse_network('{"Network": "10.5.0.0/16"}')
    with Claims("masq", "blue") as claims:
        with without_descriptors():
            reason = refusal_by_others(claims, network)
        assert "Too many open files" in reason
        assert refusal_by_others(claims, network) == ""
