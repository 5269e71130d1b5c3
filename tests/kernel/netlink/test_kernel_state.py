"""Leases and a context: what a real kernel holds then (on the fake one in tests/unit/dataplane/kernel)."""

from tests.examples.programming_cases import Case, cases, result_of, ways
from tests.hosts.netlink import Host


@cases
@ways
async def test_the_kernel_holds_what_the_leases_need(case: Case, is_whole: bool, vxlan_host: Host) -> None:
    with vxlan_host.kernel() as kernel:
        assert await result_of(case, kernel, vxlan_host.names, is_whole=is_whole) == case.dump
