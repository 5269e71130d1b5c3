"""The packet sockets of a capture: what is lost, in which order packets are told, and how many at once."""

import asyncio
import socket
from ipaddress import ip_network
from typing import Final

import pytest

from flannelette.services.dataplane.capture import Capture, Limits, inner
from tests.hosts.namespaces import NetworkNamespace
from tests.patience import PATIENCE

EVERYTHING: Final = inner([ip_network("127.0.0.0/8")], None)


async def pass_by(witness: Capture, sender: socket.socket, number: int) -> None:
    """A datagram to a port that nobody has, and ICMP, each sent and received; `number` have then passed in all."""
    sender.sendto(b"x", ("127.0.0.1", 9))
    async with asyncio.timeout(PATIENCE):
        while witness.count < number:
            witness.read()
            await asyncio.sleep(0.01)


async def test_what_a_caller_has_not_read_in_the_end_counts_as_lost(netns: NetworkNamespace) -> None:
    limits = Limits(seconds=1, bytes=1000, packets=0, snap_length=100)
    with netns.inside(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        witness, capture = (Capture({"lo": EVERYTHING, "none": EVERYTHING}, limits) for _ in range(2))
        assert [name for name, _ in capture.interfaces] == ["lo"]
        for number in (4, 8):
            await pass_by(witness, sender, number)
            if number == 4:
                assert len(capture.read().packets) == 4
    capture.give_up()
    witness.close()
    assert (capture.count, capture.dropped, capture.is_open) == (4, 4, False)


async def test_what_comes_while_sockets_are_read_waits_for_older_packets_of_other_sockets(
    netns: NetworkNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = Limits(seconds=1, bytes=10_000, packets=0, snap_length=100)
    with netns.inside(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        witness, capture = (Capture({"lo": EVERYTHING}, limits) for _ in range(2))
        for number in (4, 8):
            await pass_by(witness, sender, number)
            with monkeypatch.context() as clock:
                clock.setattr("time.time_ns", lambda: 0)  # nothing is older than the call, as after a step of it
                if number == 4:
                    assert capture.read().packets == []
                else:
                    capture.stop()
                found = [packet.nanoseconds for packet in capture.read().packets]
            assert len(found) == 4
            assert found == sorted(found)
    capture.close()
    witness.close()


async def test_a_batch_is_small_enough_for_a_message(
    netns: NetworkNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = Limits(seconds=1, bytes=1 << 30, packets=0, snap_length=65_536)
    with netns.inside(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender, sender.dup() as receiver:
        receiver.bind(("127.0.0.1", 0))
        capture = Capture({"lo": EVERYTHING}, limits)
        for _ in range(20):
            sender.sendto(bytes(60_000), receiver.getsockname())
        sizes = []
        async with asyncio.timeout(PATIENCE):
            while capture.count + capture.dropped < 40:  # sent and received
                await asyncio.sleep(0.01)
                with monkeypatch.context() as clock:
                    clock.setattr("time.time_ns", lambda: 0)
                    sizes += [sum(len(packet.data) for packet in capture.read().packets) for _ in range(2)]
                sizes.append(sum(len(packet.data) for packet in capture.read().packets))
    capture.close()
    assert max(sizes) < (1 << 20) + 65_536
