"""Questions to the kernel over netlink that block, with a kernel that is played at the other end of a socket."""

import socket
import struct
from collections.abc import Iterator
from errno import EINTR, ENOENT

import pytest

from flannelette.services.runtime.os import netlink
from flannelette.services.runtime.os.netlink import ACK, DUMP, REQUEST, exchange, message, messages

ERROR, DONE, INTERRUPTED = 2, 3, 0x10
ASKED = message(18, b"\1\2\3\4", REQUEST | DUMP)


def coded(kind: int, error: int = 0, flags: int = 0) -> bytes:
    return message(kind, struct.pack("=i", -error), flags)


class PlayedSocket(socket.socket):
    """Answers what is sent with all of these datagrams."""

    def __init__(self, *datagrams: bytes) -> None:
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        super().__init__(fileno=here.detach())
        self.settimeout(0.2)
        self._there = there
        for each in datagrams:
            there.send(each)

    @property
    def asked(self) -> bytes:
        return self._there.recv(4096)

    def close(self) -> None:
        self._there.close()
        super().close()


@pytest.fixture
def play() -> Iterator[type[PlayedSocket]]:
    opened: list[PlayedSocket] = []

    class Played(PlayedSocket):
        def __init__(self, *datagrams: bytes) -> None:
            super().__init__(*datagrams)
            opened.append(self)

    yield Played
    for each in opened:
        each.close()


def test_a_dump_is_read_to_its_end_in_all_its_datagrams(play: type[PlayedSocket]) -> None:
    kernel = play(
        message(16, b"one!") + message(16, b"odd"), message(17, b"last"), coded(DONE), message(16, b"later")
    )
    assert list(exchange(kernel, ASKED)) == [(16, b"one!"), (16, b"odd"), (17, b"last")]
    assert kernel.asked == ASKED


def test_an_answer_to_a_single_request_is_one_datagram_or_an_acknowledgement(play: type[PlayedSocket]) -> None:
    assert list(exchange(play(message(16, b"one!")), message(18, b""))) == [(16, b"one!")]
    assert list(exchange(play(coded(ERROR)), message(18, b"", REQUEST | ACK))) == []


@pytest.mark.parametrize("kind", [ERROR, DONE])
def test_a_refusal_is_an_error_with_its_number(play: type[PlayedSocket], kind: int) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        list(exchange(play(coded(kind, ENOENT)), ASKED))
    assert caught.value.errno == ENOENT


def test_numbers_that_no_program_has_are_kept(play: type[PlayedSocket]) -> None:
    """ipset has numbers of its own."""
    with pytest.raises(OSError, match="4103"):
        list(exchange(play(coded(ERROR, 4103)), message(18, b"")))


def test_a_kernel_that_does_not_answer_is_not_waited_for(play: type[PlayedSocket]) -> None:
    with pytest.raises(TimeoutError):
        list(exchange(play(message(16, b"one!")), ASKED))


@pytest.mark.parametrize("where", ["message", "end"])
def test_a_dump_that_was_interrupted_says_so_after_all_of_it(play: type[PlayedSocket], where: str) -> None:
    flags = {where: INTERRUPTED}
    kernel = play(message(16, b"half", flags.get("message", 0)), coded(DONE, flags=flags.get("end", 0)))
    answers = exchange(kernel, ASKED)
    assert next(answers) == (16, b"half")
    with pytest.raises(InterruptedError) as caught:
        next(answers)
    assert caught.value.errno == EINTR


def test_a_dump_that_was_interrupted_is_asked_for_again_but_not_for_ever(
    play: type[PlayedSocket], monkeypatch: pytest.MonkeyPatch
) -> None:
    half = (message(16, b"half", INTERRUPTED), coded(DONE))
    kernels = [half, half, (message(16, b"whole"), coded(DONE))]
    monkeypatch.setattr(netlink, "open_netlink", lambda _: play(*kernels.pop(0)))
    assert netlink.ask(0, 18, b"", DUMP) == [(16, b"whole")]
    kernels = [half] * 9
    assert netlink.ask(0, 18, b"", DUMP) == [(16, b"half")], "what there was"
    assert len(kernels) == 4


def test_what_is_no_message_ends_a_datagram() -> None:
    assert list(messages(b"")) == []
    assert list(messages(message(1, b"abc") + b"\0" * 8)) == [(1, 0x1, b"abc")]
    assert [kind for kind, _, _ in messages(struct.pack("=IHHII", 0, 5, 0, 0, 0) * 2)] == [5, 5]
