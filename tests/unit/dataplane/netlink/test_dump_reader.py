"""A dump is read to its end, and asked for again when it was interrupted."""

from collections.abc import Callable, Mapping
from errno import ENOENT, EPERM

import pytest

from flannelette.services.core.errors import Unavailable
from flannelette.services.dataplane.netlink import uapi
from flannelette.services.dataplane.netlink.raw_socket import ANY_REFUSAL, AnswersLost, DumpReader, complete, dumped
from flannelette.services.dataplane.netlink.uapi import HEADER, KernelError

REQUEST = uapi.request(uapi.RTM_GETRULE, b"", uapi.NLM_F_DUMP)
OTHER = 1000
"""The number of a request of somebody else."""


class Bodies(DumpReader):
    def __init__(self, sequence: int) -> None:
        super().__init__(sequence)
        self.found: list[bytes] = []

    def read(self, kind: int, block: bytes, offset: int, end: int) -> None:
        self.found.append(block[offset + HEADER.size : end])


class PlayedKernel:
    """Answers each dump with the next of these lists of datagrams; without datagrams, the answers are lost."""

    port = 0

    def __init__(self, *answers: list[Callable[[int], bytes]]) -> None:
        self._answers = list(answers)
        self.asked: list[int] = []

    def close(self) -> None:
        pass

    def reserve(self, count: int) -> int:
        return len(self.asked) + count

    async def exchange(self, batch: bytes, first: int, last: int) -> Mapping[int, KernelError]:
        return {}

    async def dump(self, request: bytes, take: Callable[[bytes], bool]) -> None:
        (number,) = HEADER.unpack_from(request)[3:4]
        self.asked.append(number)
        blocks = [made(number) for made in self._answers[min(len(self.asked), len(self._answers)) - 1]]
        if not any(take(block) for block in blocks):
            raise AnswersLost


def rule(body: bytes, flags: int = 0, *, of: int = 0) -> Callable[[int], bytes]:
    return lambda number: (
        HEADER.pack(HEADER.size + len(body), uapi.RTM_NEWRULE, flags, of or number, 0) + body + bytes(-len(body) % 4)
    )


def end(error: int = 0, flags: int = 0, kind: int = uapi.NLMSG_DONE) -> Callable[[int], bytes]:
    return lambda number: HEADER.pack(20, kind, flags, number, 0) + (-error).to_bytes(4, "little", signed=True)


async def test_all_datagrams_count_and_what_answers_another_request_does_not() -> None:
    kernel = PlayedKernel(
        [rule(b"one"), lambda number: rule(b"of others", of=OTHER)(number) + rule(b"two")(number), end()]
    )
    assert (await complete(kernel, REQUEST, Bodies, "rules")).found == [b"one", b"two"]
    assert kernel.asked == [1]


@pytest.mark.parametrize(
    "first",
    [
        [rule(b"half", uapi.NLM_F_DUMP_INTR), end()],
        [rule(b"half"), end(flags=uapi.NLM_F_DUMP_INTR)],
        [lambda number: rule(b"half")(number)[:-2], end()],
        [],
    ],
    ids=["interrupted", "interrupted at the end", "cut off", "lost"],
)
async def test_a_dump_that_is_not_whole_is_asked_for_again_under_another_number(
    first: list[Callable[[int], bytes]],
) -> None:
    kernel = PlayedKernel(first, first, [rule(b"whole"), end()])
    assert (await complete(kernel, REQUEST, Bodies, "rules")).found == [b"whole"]
    assert kernel.asked == [1, 2, 3]


async def test_a_dump_that_never_gets_whole_is_no_dump() -> None:
    kernel = PlayedKernel([rule(b"half", uapi.NLM_F_DUMP_INTR), end()])
    with pytest.raises(Unavailable, match="the kernel's rules kept changing while they were read: try again"):
        await complete(kernel, REQUEST, Bodies, "rules")
    assert len(kernel.asked) == 10
    assert (await dumped(kernel, REQUEST, Bodies, 2)).found == [b"half"], "who wants it may have what there was"
    assert len(kernel.asked) == 12


async def test_what_was_read_before_answers_got_lost_is_not_kept() -> None:
    reader = await dumped(PlayedKernel([rule(b"half")]), REQUEST, Bodies, 1)
    assert (reader.found, reader.inconsistent) == ([], True)


@pytest.mark.parametrize("kind", [uapi.NLMSG_ERROR, uapi.NLMSG_DONE])
async def test_a_refusal_is_told_in_the_kernels_words_unless_it_means_nothing_is_there(kind: int) -> None:
    kernel = PlayedKernel([end(EPERM, kind=kind)])
    with pytest.raises(Unavailable, match=r"the kernel does not list its rules: Operation not permitted \(EPERM\)"):
        await complete(kernel, REQUEST, Bodies, "rules", (ENOENT,))
    assert kernel.asked == [1], "it would say the same again"
    reader = await complete(kernel, REQUEST, Bodies, "rules", ANY_REFUSAL)
    assert (reader.found, reader.refusal) == ([], KernelError(EPERM, ""))
