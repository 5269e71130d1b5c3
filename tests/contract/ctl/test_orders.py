"""The command line changes something only when it is told so: resync, handover, teardown, quarantine, removals."""

import grpc

from flannelette.dataplane.v1 import dataplane_pb2
from flannelette.lease.v1 import lease_pb2
from lab.private import own_namespaces
from tests.ctl import samples as samples
from tests.ctl.fakes import FakeNode
from tests.ctl.process import run


async def test_resync_prints_commands_and_a_dry_run_with_something_to_do_is_1(node: FakeNode) -> None:
    ran = await run(node.directory, "resync", "--dry-run")
    assert ran.code == 1
    assert node.dataplane.replies.asked[-1][1].dry_run
    assert ran.out.splitlines() == [
        "# dataplane: 1 command to run",
        "ip route replace 10.5.2.0/24 via 10.5.2.0 dev flannel.1 onlink",
        "# masq: nothing to do",
    ]
    assert (await run(node.directory, "resync")).code == 0
    assert not node.dataplane.replies.asked[-1][1].dry_run
    ran = await run(node.directory, "resync", "masq", "-o", "json")
    assert (ran.code, ran.json["masq"]["commands"]) == (0, [])


async def test_diff_changes_nothing_and_exits_as_diff_does(node: FakeNode) -> None:
    ran = await run(node.directory, "diff")
    assert (ran.code, ran.out) == (1, (await run(node.directory, "resync", "--dry-run")).out)
    assert all(request.dry_run for _, request in node.dataplane.replies.asked)
    ran = await run(node.directory, "diff", "masq", "-o", "json")
    assert (ran.code, ran.json["masq"]["commands"]) == (0, [])
    node.dataplane.replies.by_method["ResyncKernel"] = (grpc.StatusCode.FAILED_PRECONDITION, "no snapshot yet")
    ran = await run(node.directory, "diff")
    assert (ran.code, ran.out) == (2, "# masq: nothing to do\n")
    assert ran.err == "flannelette: dataplane: no snapshot yet\n"


async def test_a_handover_prints_its_commands_and_fails_as_the_service_says(node: FakeNode) -> None:
    ran = await run(node.directory, "handover", "--dry-run")
    assert (ran.code, ran.out.splitlines()[0]) == (0, "# dataplane: 1 command to run")
    assert node.dataplane.replies.asked[-1][1].dry_run
    ran = await run(node.directory, "handover")
    assert (ran.code, ran.out.splitlines()[0]) == (0, "# dataplane: 1 command run")
    assert not node.dataplane.replies.asked[-1][1].dry_run
    assert not node.masq.replies.asked
    node.dataplane.replies.by_method["HandOver"] = dataplane_pb2.HandOverResponse(errors=["no route could be made"])
    ran = await run(node.directory, "handover")
    assert (ran.code, ran.out.splitlines()[1]) == (1, "# failed: no route could be made")
    node.dataplane.replies.by_method["HandOver"] = (grpc.StatusCode.FAILED_PRECONDITION, "flannel.1 is missing")
    ran = await run(node.directory, "handover")
    assert (ran.code, ran.err) == (1, "flannelette: dataplane: flannel.1 is missing\n")


async def test_resync_does_what_it_can_when_one_service_is_away(node: FakeNode) -> None:
    await node.stop("dataplane")
    ran = await run(node.directory, "resync")
    assert ran.code == 1
    assert ran.out == "# masq: nothing to do\n"
    assert "dataplane: there is no socket" in ran.err


async def test_teardown_removes_nothing_unless_it_is_told_so(node: FakeNode) -> None:
    ran = await run(node.directory, "teardown", "--dry-run")
    assert (ran.code, ran.out.splitlines()[1]) == (0, "ip link delete flannel.1")
    assert (await run(node.directory, "teardown")).code == 2
    assert [request.dry_run for _, request in node.dataplane.replies.asked] == [True]
    assert (await run(node.directory, "teardown", "--yes")).code == 0
    assert [request.dry_run for _, request in node.masq.replies.asked] == [True, False]


async def test_what_a_stopped_dataplane_has_left_is_removed_only_on_request_and_by_no_service(node: FakeNode) -> None:
    assert (await run(node.directory, "teardown", "--keep-foreign")).code == 2
    ran = await run(node.directory, "masq", "teardown", "--dry-run")
    assert ran.out == (await run(node.directory, "teardown", "masq", "--dry-run")).out
    assert (await run(node.directory, "masq", "teardown")).code == 2
    assert (await run(node.directory, "masq", "teardown", "--yes")).code == 0
    ran = await run(node.directory, "teardown", "masq", "--keep-foreign", "--yes")
    assert ran.code == 2
    assert "--keep-foreign is for the dataplane" in ran.err
    ran = await run(node.directory, "teardown", "--keep-foreign", "--dry-run", prefix=own_namespaces())
    assert (ran.code, ran.out) == (0, "# dataplane: nothing to do\n")
    ran = await run(node.directory, "teardown", "--keep-foreign", "--dry-run", FLANNELD_ROUTE_PROTOCOL="many")
    assert ran.code == 2
    assert ran.err.startswith("flannelette: dataplane: FLANNELD_ROUTE_PROTOCOL")
    assert not node.dataplane.replies.asked


async def test_an_empty_quarantine_is_0_and_one_with_keys_is_1(node: FakeNode) -> None:
    ran = await run(node.directory, "quarantine")
    assert (ran.code, ran.out) == (0, "nothing is quarantined, and no removal is held back\n")
    node.lease.replies.by_method["ListQuarantine"] = samples.quarantine()
    ran = await run(node.directory, "quarantine")
    assert ran.code == 1
    assert ran.out.splitlines()[1].startswith("10.5.28.0-25  overlap")
    document = (await run(node.directory, "quarantine", "-o", "json")).json
    assert document["keys"][0]["other_lease"] == "10.5.28.0-24"
    assert len(document["held_removals"]) == 30


async def test_a_quarantined_key_is_deleted_only_when_told_so(node: FakeNode) -> None:
    ran = await run(node.directory, "quarantine", "--delete", "nonsense")
    assert (ran.code, node.lease.replies.asked) == (2, [])
    ran = await run(node.directory, "quarantine", "--delete", "a", "--delete", "b", "--yes")
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    assert [request.key for _, request in node.lease.replies.asked] == ["a", "b"]
    node.lease.replies.by_method["DeleteQuarantined"] = (grpc.StatusCode.NOT_FOUND, "the key a is not quarantined")
    ran = await run(node.directory, "quarantine", "--delete", "a", "--yes")
    assert (ran.code, ran.err) == (1, "flannelette: the key a is not quarantined\n")


async def test_a_removal_is_confirmed_only_when_told_so(node: FakeNode) -> None:
    assert (await run(node.directory, "confirm-removal")).code == 2
    assert node.lease.replies.asked == []
    ran = await run(node.directory, "confirm-removal", "--yes")
    assert (ran.code, ran.err) == (1, "flannelette: no removal is held back\n")
    removed = lease_pb2.ConfirmRemovalResponse(removed=["10.5.1.0-24", "10.5.2.0-24"])
    node.lease.replies.by_method["ConfirmRemoval"] = removed
    ran = await run(node.directory, "confirm-removal", "--yes")
    assert (ran.code, ran.out) == (0, "2 leases removed:\n  10.5.1.0-24 10.5.2.0-24\n")
