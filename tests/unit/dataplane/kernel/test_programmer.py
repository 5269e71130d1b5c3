"""What is logged, counted and known of peers after failures and refusals."""

from dataclasses import replace

from structlog.testing import capture_logs

from flannelette.services.dataplane.events import REFUSED
from flannelette.services.dataplane.netlink.objects import Neighbour
from flannelette.services.dataplane.peers import peer_of
from tests.examples.dataplane import lease, subnet
from tests.examples.leases import by_name
from tests.examples.programming import fake_node
from tests.examples.programming_cases import MAC, N2, N3, VXLAN


async def test_a_lease_that_left_and_comes_back_at_a_comparison_is_no_repair() -> None:
    node = fake_node(VXLAN, N2, N3)
    await node.program()
    await node.change(N3)
    node.leases[N2.name] = N2
    await node.program()
    assert (node.programmer.last_resync_changes, node.journal.repairs.total()) == (3, 0)


async def test_what_could_not_be_deleted_is_believed_to_be_there_and_said_to_have_failed() -> None:
    node = fake_node(VXLAN, N2)
    await node.program()
    stuck = next(item for item in node.kernel.objects if isinstance(item, Neighbour))
    node.kernel.refused[stuck] = "Device or resource busy (EBUSY)"
    await node.change()
    assert node.reconciler.programmed == node.kernel.objects == {stuck}
    assert node.reconciler.failures == {stuck: "Device or resource busy (EBUSY)"}
    node.kernel.refused.clear()
    await node.program()
    assert node.reconciler.programmed == node.kernel.objects == set()
    assert node.reconciler.failures == {}


async def test_what_the_kernel_refuses_is_logged_once_and_is_no_repair() -> None:
    node = fake_node(VXLAN, N2)
    await node.program()
    refused = next(item for item in peer_of(N3, VXLAN).objects if isinstance(item, Neighbour))
    node.kernel.refused[refused] = "Operation not supported (ENOTSUP)"
    with capture_logs() as logs:
        await node.change(N2, N3)
        for _ in range(3):
            await node.program()
    assert [entry["event"] for entry in logs] == ["objects that leases need cannot be made; retrying"]
    assert logs[0]["first"].endswith("PERMANENT: Operation not supported (ENOTSUP)")
    assert (node.programmer.last_resync_changes, node.journal.repairs.total()) == (0, 0)


async def test_a_refusal_is_logged_and_counted_when_it_is_new() -> None:
    bad = lease(subnet("10.5.53.0/24", "127.0.0.1", MAC), node="n9")
    node, before = fake_node(VXLAN), REFUSED.labels("public-address")._value.get()
    await node.program()
    node.leases = by_name(N2, bad)
    with capture_logs() as logs:
        for _ in range(2):
            await node.program()
        await node.change(bad)
        await node.change(replace(bad, subnets=(subnet("10.5.53.0/24", "::1", MAC),)))
    assert [(entry["event"], entry["reason"]) for entry in logs] == [
        ("a lease is refused", "public address 127.0.0.1 is a loopback address"),
        ("a lease is refused", "public address ::1 is not an IPv4 address"),
    ]
    assert REFUSED.labels("public-address")._value.get() == before + 2
