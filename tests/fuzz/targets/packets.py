"""Packets of anybody: replies to probes, what routers tell of paths, and what the proxy of backend `udp` carries."""

from flannelette.services.core.family import FAMILIES
from flannelette.services.dataplane.probes.sockets import reply, too_large_in
from flannelette.services.dataplane.udp.packets import FRAGMENTATION_NEEDED, SMALLEST, decrement_ttl, icmp_error


def packets(data: bytes) -> None:
    """Nothing is taken for a reply that does not have our token, and every error that is sent is a packet."""
    for family in FAMILIES:
        found = reply(family, data, 7, 0x0102030405060708)
        assert found is None or bytes(range(1, 9)) in data
        told = too_large_in(family, data)
        assert told is None or (told[0].version == family.version and told[0].packed in data and told[1] >= 0)
    if len(data) >= SMALLEST:
        sent = icmp_error(data, bytes(4), FRAGMENTATION_NEEDED, 1400)
        assert sent is None or len(sent) == int.from_bytes(sent[2:4])
        packet = bytearray(data)
        assert decrement_ttl(packet) is (data[8] > 1)
        assert len(packet) == len(data)
