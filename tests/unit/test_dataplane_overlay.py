"""What the overlay remembers between two looks at the kernel."""

from dataclasses import replace
from ipaddress import ip_network

from structlog.testing import capture_logs

from services.core.lease import Lease, VxlanData
from services.dataplane.backends.vxlan import Vxlan
from services.dataplane.journal import Journal
from services.dataplane.netlink.objects import Neighbour
from services.dataplane.overlay import Overlay
from services.dataplane.peers import peer_of
from services.dataplane.reconciler import Reconciler
from services.dataplane.situation import Situation
from tests.dataplane_examples import CAPTURED, LINKS, FakeKernel, lease, subnet
from tests.lease_examples import SMALL, by_name

SITUATION = Situation(SMALL, Vxlan(), LINKS, (subnet("10.5.27.0/24").cidr,))
MAC = "02:00:00:00:00:99"
N2, N3 = (lease(CAPTURED[node], node=node) for node in ("n2", "n3"))


async def overlay(kernel: FakeKernel, *leases: Lease) -> Overlay:
    made = Overlay("n1", Reconciler(kernel), Journal())  # type: ignore[arg-type]  # it answers the same questions
    await made.program_all(SITUATION, leases)
    return made


async def test_a_lease_that_left_and_comes_back_at_a_comparison_is_no_repair() -> None:
    made = await overlay(FakeKernel(), N2, N3)
    await made.program_some([N2.name], by_name(N3))
    await made.program_all(SITUATION, [N2, N3])
    assert (made.last_resync_changes, made.journal.repairs.total()) == (3, 0)


async def test_what_could_not_be_deleted_is_believed_to_be_there_and_said_to_have_failed() -> None:
    kernel = FakeKernel()
    made = await overlay(kernel, N2)
    stuck = next(item for item in made.peers[N2.name].objects if isinstance(item, Neighbour))
    kernel.refused[stuck] = "Device or resource busy (EBUSY)"
    await made.program_some([N2.name], {})
    assert made.reconciler.programmed == kernel.objects == {stuck}
    assert made.reconciler.failures == {stuck: "Device or resource busy (EBUSY)"}
    kernel.refused.clear()
    await made.program_all(SITUATION, [])
    assert made.reconciler.programmed == kernel.objects == set()
    assert made.reconciler.failures == {}


async def test_an_unknown_name_is_no_change() -> None:
    kernel = FakeKernel()
    made = await overlay(kernel, N2)
    before, dumps = list(kernel.done), kernel.dumps
    await made.program_some(["10.5.99.0-24"], by_name(N2))
    assert (kernel.done, kernel.dumps) == (before, dumps)


async def test_whoever_lost_its_place_to_a_rival_has_it_again_as_soon_as_the_rival_is_gone() -> None:
    kernel = FakeKernel()
    made = await overlay(kernel, N2, N3)
    before = set(kernel.objects)
    rival = lease(subnet("10.5.41.0/24", "10.99.0.99", "06:0c:56:6d:fb:b3"), node="n9")  # the MAC of n2
    await made.program_some([rival.name], by_name(N2, N3, rival))
    await made.program_some([rival.name], by_name(N2, N3))
    assert kernel.objects == made.reconciler.programmed == before


async def test_of_two_leases_that_overlap_one_is_carried_at_once_and_the_other_when_that_is_gone() -> None:
    kernel = FakeKernel()
    made = await overlay(kernel, N2, N3)
    before = set(kernel.objects)
    rival = lease(replace(CAPTURED["n2"], cidr=ip_network("10.5.53.0/25"), data=VxlanData(1, MAC)), node="n9")
    await made.program_some([rival.name], by_name(N2, N3, rival))
    assert kernel.objects == made.reconciler.programmed == before
    await made.program_some([N2.name], by_name(N3, rival))
    assert (
        kernel.objects
        == made.reconciler.programmed
        == {*peer_of(rival, SITUATION).objects, *peer_of(N3, SITUATION).objects}
    )
    await made.program_some([N2.name], by_name(N2, N3, rival))
    assert kernel.objects == made.reconciler.programmed == before
    assert made.journal.repairs.total() == 0


async def test_a_subnet_that_goes_from_one_lease_to_another_is_no_rivalry() -> None:
    kernel = FakeKernel()
    made = await overlay(kernel, N2, N3)
    heir = lease(replace(CAPTURED["n2"], cidr=ip_network("10.5.53.0/25"), data=VxlanData(1, MAC)), node="n2")
    await made.program_some([heir.name, N2.name], by_name(heir, N3))
    assert kernel.objects == made.reconciler.programmed


async def test_what_the_kernel_refuses_is_logged_once_and_is_no_repair() -> None:
    kernel = FakeKernel()
    made = await overlay(kernel, N2)
    refused = next(item for item in peer_of(N3, SITUATION).objects if isinstance(item, Neighbour))
    kernel.refused[refused] = "Operation not supported (ENOTSUP)"
    with capture_logs() as logs:
        await made.program_some([N3.name], by_name(N2, N3))
        for _ in range(3):
            await made.program_all(SITUATION, [N2, N3])
    assert [entry["event"] for entry in logs] == ["the kernel refuses what leases need; trying again"]
    assert logs[0]["first"].endswith("PERMANENT: Operation not supported (ENOTSUP)")
    assert (made.last_resync_changes, made.journal.repairs.total()) == (0, 0)
