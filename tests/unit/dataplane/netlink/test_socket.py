"""What becomes of refused, lost and missing answers, with a kernel that answers as told."""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from errno import EINVAL, ENOENT, EPERM, ESRCH

import pytest

from flannelette.services.core.errors import Misconfigured, Unavailable
from flannelette.services.dataplane.netlink import uapi
from flannelette.services.dataplane.netlink.kernel import KernelSocket
from flannelette.services.dataplane.netlink.objects import RTPROT_BOOT, FdbEntry, KernelObject, Neighbour, Plan, Route
from flannelette.services.dataplane.netlink.raw_socket import AnswersLost
from flannelette.services.dataplane.netlink.uapi import KernelError

SUBNET = bytes((10, 5, 2, 0))
MAC = bytes.fromhex("02000a050200")
ROUTE = Route(SUBNET, SUBNET, 3, uapi.AF_INET, 24, 7, 77, onlink=True)
TWIN = ROUTE._replace(metric=0, protocol=RTPROT_BOOT)
NEIGHBOUR = Neighbour(SUBNET, MAC, uapi.AF_INET, 7)
ENTRY = FdbEntry(MAC, bytes((10, 99, 0, 12)), 7)
NOTHING = frozenset[KernelObject]()


@dataclass
class FakeKernel:
    """Refuses message types as told, and loses the answers to batches longer than it can bear."""

    refusals: Mapping[int, KernelError] = field(default_factory=dict)
    longest: int = 10**6
    port: int = 4711
    asked: list[int] = field(default_factory=list)
    """The type of each message, in order."""
    dumps: list[bytes] = field(default_factory=list)
    next: int = 1

    def close(self) -> None:
        pass

    def reserve(self, count: int) -> int:
        self.next += count
        return self.next - count

    async def exchange(self, batch: bytes, first: int, last: int) -> dict[int, KernelError]:
        if last - first + 1 > self.longest:
            raise AnswersLost
        refused, offset = {}, 0
        while offset < len(batch):
            length, kind, _, sequence, _ = struct.unpack_from("=IHHII", batch, offset)
            assert first <= sequence <= last
            self.asked.append(kind)
            if kind in self.refusals:
                refused[sequence] = self.refusals[kind]
            offset += length
        return refused

    async def dump(self, request: bytes, take: Callable[[bytes], bool]) -> None:
        if not self.dumps:
            raise AnswersLost
        sequence = request[8:12]
        block = self.dumps.pop(0)
        assert take(block[:8] + sequence + block[12:])


def done(flags: int = 0, error: int = 0) -> bytes:
    return struct.pack("=IHHIIi", 20, uapi.NLMSG_DONE, flags, 0, 0, -error)


async def test_one_refused_object_is_reported_alone_in_the_kernels_words() -> None:
    kernel = FakeKernel({uapi.RTM_NEWROUTE: KernelError(EINVAL, "Nexthop has invalid gateway.")})
    failures = await KernelSocket(kernel).apply(Plan(frozenset({ROUTE, NEIGHBOUR, ENTRY}), NOTHING))
    assert failures == {ROUTE: "Nexthop has invalid gateway: Invalid argument (EINVAL)"}
    assert kernel.asked == [uapi.RTM_NEWNEIGH, uapi.RTM_NEWNEIGH, uapi.RTM_NEWROUTE]


async def test_what_is_gone_already_counts_as_deleted() -> None:
    kernel = FakeKernel({uapi.RTM_DELROUTE: KernelError(ESRCH, ""), uapi.RTM_DELNEIGH: KernelError(ENOENT, "")})
    assert await KernelSocket(kernel).apply(Plan(NOTHING, frozenset({ROUTE, NEIGHBOUR, ENTRY}))) == {}
    kernel.refusals = {uapi.RTM_DELROUTE: KernelError(EINVAL, "")}
    assert set(await KernelSocket(kernel).apply(Plan(NOTHING, frozenset({ROUTE, NEIGHBOUR})))) == {ROUTE}


async def test_a_twin_stays_when_the_route_that_replaces_it_is_refused() -> None:
    kernel = FakeKernel({uapi.RTM_NEWROUTE: KernelError(EINVAL, "")})
    other = TWIN._replace(dst=bytes((10, 5, 3, 0)))
    failures = await KernelSocket(kernel).apply(Plan(frozenset({ROUTE}), frozenset({TWIN, other})))
    assert set(failures) == {ROUTE, TWIN}
    assert "not deleted" in failures[TWIN]
    assert kernel.asked == [uapi.RTM_NEWROUTE, uapi.RTM_DELROUTE]


async def test_without_net_admin_one_error_says_what_to_do() -> None:
    kernel = FakeKernel({uapi.RTM_NEWNEIGH: KernelError(EPERM, ""), uapi.RTM_NEWROUTE: KernelError(EPERM, "")})
    with pytest.raises(Misconfigured, match="needs the capability NET_ADMIN"):
        await KernelSocket(kernel).apply(Plan(frozenset({ROUTE, NEIGHBOUR}), NOTHING))


async def test_a_batch_whose_answers_are_lost_is_sent_again_one_by_one() -> None:
    kernel = FakeKernel({uapi.RTM_NEWROUTE: KernelError(EINVAL, "no")}, longest=1)
    failures = await KernelSocket(kernel).apply(Plan(frozenset({ROUTE, NEIGHBOUR, ENTRY}), NOTHING))
    assert set(failures) == {ROUTE}
    assert len(kernel.asked) == 3


async def test_an_outcome_that_stays_unknown_is_a_failure() -> None:
    failures = await KernelSocket(FakeKernel(longest=0)).apply(Plan(frozenset({ROUTE, NEIGHBOUR}), NOTHING))
    assert set(failures) == {ROUTE, NEIGHBOUR}
    assert all("not known" in why for why in failures.values())


async def test_an_interrupted_dump_is_asked_for_again() -> None:
    kernel = FakeKernel(dumps=[done(uapi.NLM_F_DUMP_INTR), done()])
    assert await KernelSocket(kernel).routes(uapi.AF_INET) == frozenset()
    assert kernel.dumps == []


@pytest.mark.parametrize("error", [ENOENT, 19])
async def test_a_table_or_device_that_does_not_exist_holds_nothing(error: int) -> None:
    assert await KernelSocket(FakeKernel(dumps=[done(error=error)])).routes(uapi.AF_INET) == frozenset()


async def test_a_refused_dump_is_unavailable() -> None:
    with pytest.raises(Unavailable, match=r"does not list its neighbours: Invalid argument \(EINVAL\)"):
        await KernelSocket(FakeKernel(dumps=[done(error=EINVAL)])).neighbours(uapi.AF_INET, 7)
