"""Leases and a context: what the kernel holds then, on the fake kernel (on a real one in tests/kernel/netlink)."""

from tests.examples.dataplane import FakeKernel
from tests.examples.programming_cases import Case, cases, result_of, ways


@cases
@ways
async def test_the_kernel_holds_what_the_leases_need(case: Case, is_whole: bool) -> None:
    assert await result_of(case, FakeKernel(), is_whole=is_whole) == case.dump
