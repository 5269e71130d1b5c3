"""The command line as a process, against real gRPC servers on unix sockets."""

import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from flannelette.dataplane.v1 import dataplane_pb2
from flannelette.lease.v1 import lease_pb2

from tests import ctl_samples as samples
from tests.ctl_fakes import FakeNode
from tests.ctl_process import run


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[FakeNode]:
    fake = FakeNode(tmp_path)
    await fake.start()
    yield fake
    await fake.stop()


async def test_a_healthy_node_has_exit_code_0_and_all_three_services(node: FakeNode) -> None:
    ran = await run(node.directory, "status")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("h1 is healthy\n")
    assert [line for line in ran.out.splitlines() if line.endswith(" ready")] == [
        "lease        ready",
        "dataplane    ready",
        "masq         ready",
    ]


async def test_the_doctor_names_what_is_in_the_way_and_its_cure(node: FakeNode) -> None:
    ran = await run(node.directory, "doctor")
    assert (ran.code, ran.out) == (0, "SERVICE  PROBLEM  CURE\n")
    status = samples.masq_status()
    status.status.masquerade = False
    status.status.findings.add(problem="The kernel forwards no IPv4 packets.", cure="sysctl -w net.ipv4.ip_forward=1")
    node.masq.replies.by_method["GetStatus"] = status
    ran = await run(node.directory, "doctor", "masq", "-o", "json")
    assert ran.code == 1
    assert [ailment["cure"] for ailment in ran.json["ailments"]] == [
        "flannelette-masq --ip-masq",
        "sysctl -w net.ipv4.ip_forward=1",
    ]
    assert (await run(node.directory, "doctor", "lease", "dataplane")).code == 0
    await node.stop("masq")
    ran = await run(node.directory, "doctor", "masq")
    assert ran.code == 2
    assert "start flannelette-masq" in ran.out


async def test_status_as_json_is_one_document_with_the_responses(node: FakeNode) -> None:
    document = (await run(node.directory, "status", "-o", "json")).json
    assert (document["healthy"], document["node"]) == (True, "h1")
    assert document["lease"]["response"]["network"]["families"][0]["subnet_length"] == 24
    assert document["dataplane"]["response"]["status"]["lease_service_connected"] is True
    assert document["masq"]["state"] == "READY"


async def test_one_service_away_is_1_and_the_others_are_shown(node: FakeNode) -> None:
    await node.stop("masq")
    ran = await run(node.directory, "status")
    assert ran.code == 1
    assert "h1 is not healthy" in ran.out
    assert "dataplane    ready" in ran.out
    assert f"there is no socket {node.directory}/masq.sock: start flannelette-masq" in ran.out


async def test_a_service_that_is_not_ready_is_1_with_its_reasons(node: FakeNode) -> None:
    status = samples.dataplane_status()
    status.status.ready = False
    status.status.reasons.append("no lease yet: the network configuration is missing")
    node.dataplane.replies.by_method["GetStatus"] = status
    ran = await run(node.directory, "status")
    assert ran.code == 1
    assert "! no lease yet: the network configuration is missing" in ran.out


async def test_a_central_lease_service_may_be_named_and_need_not_be(node: FakeNode, tmp_path: Path) -> None:
    nodes_own = tmp_path / "h1"
    nodes_own.mkdir()
    for service in ("dataplane", "masq"):
        (nodes_own / f"{service}.sock").symlink_to(tmp_path / f"{service}.sock")
    ran = await run(nodes_own, "status")
    assert ran.code == 0
    assert "lease        not here" in ran.out
    ran = await run(nodes_own, "status", "--lease", f"{tmp_path}/lease.sock")
    assert ran.code == 0
    assert "lease        ready" in ran.out
    ran = await run(nodes_own, "leases")
    assert (ran.code, ran.out) == (2, "")
    assert "If the lease service is central, name it: --lease" in ran.err
    assert (await run(nodes_own, "leases", FLANNELETTE_LEASE=f"unix:{tmp_path}/lease.sock")).code == 0


async def test_nobody_there_is_2_and_says_what_was_tried(tmp_path: Path) -> None:
    ran = await run(tmp_path / "none", "status")
    assert ran.code == 2
    assert "no service answers" in ran.out
    assert f"there is no directory {tmp_path}/none" in ran.out
    for words in (["leases"], ["peers"], ["rules"], ["watch"], ["resync"], ["teardown", "--yes"]):
        ran = await run(tmp_path, *words)
        assert (ran.code, ran.out) == (2, ""), words
        assert f"there is no socket {tmp_path}/" in ran.err


async def test_a_socket_without_permission_is_2_and_says_who_may(node: FakeNode) -> None:
    node.directory.chmod(0)
    # Root may do everything; without these two capabilities it is a user like any other.
    prefix = ("setpriv", "--bounding-set=-dac_override,-dac_read_search") if os.geteuid() == 0 else ()
    try:
        ran = await run(node.directory, "status", prefix=prefix)
    finally:
        node.directory.chmod(0o700)
    assert ran.code == 2
    assert ran.out.count(f"no permission for the directory {node.directory}: only ") == 3
    assert "use sudo" in ran.out


async def test_a_service_that_does_not_answer_is_given_up_soon(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(tmp_path / "lease.sock"))
        mute.listen()
        ran = await run(tmp_path, "status")
        assert ran.code == 2
        assert "did not answer within 3 s" in ran.out


async def test_the_wrong_service_behind_an_address_is_said(node: FakeNode) -> None:
    ran = await run(node.directory, "leases", "--lease", f"{node.directory}/masq.sock")
    assert ran.code == 2
    assert "is not flannelette-lease: check --lease" in ran.err


@pytest.mark.parametrize(
    "words",
    [["nonsense"], ["status", "-o", "yaml"], ["--lease", "nonsense", "leases"], ["teardown"], ["resync", "lease"]],
)
async def test_wrong_usage_is_2(node: FakeNode, words: list[str]) -> None:
    ran = await run(node.directory, *words)
    assert (ran.code, ran.out) == (2, "")
    assert "Error: " in ran.err


async def test_lists_are_printed_and_the_unwell_ones_have_exit_code_1(node: FakeNode) -> None:
    ran = await run(node.directory, "leases")
    assert ran.code == 0
    assert [line.split()[0] for line in ran.out.splitlines()] == [
        "SUBNET",
        "10.5.2.0/24",
        "10.5.9.0/24",
        "10.5.10.0/24",
    ]
    ran = await run(node.directory, "peers")
    assert (ran.code, len(ran.out.splitlines())) == (1, 4)
    ran = await run(node.directory, "rules")
    assert (ran.code, len(ran.out.splitlines())) == (0, 4)
    node.lease.replies.by_method["ListLeases"] = samples.varied_leases()
    ran = await run(node.directory, "leases")
    assert ran.code == 1
    assert "the store (etcd) is away: no leader for 12 s" in ran.err


async def test_an_empty_list_is_well_only_if_the_service_is_ready(node: FakeNode) -> None:
    node.dataplane.replies.by_method["ListPeers"] = dataplane_pb2.ListPeersResponse()
    assert (await run(node.directory, "peers")).code == 0
    status = samples.dataplane_status()
    status.status.ready = False
    status.status.reasons.append("the first complete snapshot is not programmed yet")
    node.dataplane.replies.by_method["GetStatus"] = status
    ran = await run(node.directory, "peers", "-o", "json")
    assert (ran.code, ran.json) == (1, {})
    assert ran.err == "flannelette: the first complete snapshot is not programmed yet\n"


async def test_what_is_missing_on_purpose_is_told_with_its_reason(node: FakeNode) -> None:
    status = samples.dataplane_status()
    status.status.ready = False
    status.status.reasons.append("torn down by an operator")
    node.dataplane.replies.by_method["GetStatus"] = status
    for words in (("peers",), ("peers", "h3")):
        ran = await run(node.directory, *words)
        assert (ran.code, ran.err) == (1, "flannelette: torn down by an operator\n")


async def test_lists_as_json_are_the_responses(node: FakeNode) -> None:
    assert (await run(node.directory, "-o", "json", "leases")).json["leases"][0]["backend_type"] == "vxlan"
    assert (await run(node.directory, "peers", "-o", "json")).json["peers"][2]["state"] == "PEER_STATE_FAILED"
    assert (await run(node.directory, "rules", "-o", "json")).json["rules"][1]["packets"] == "12"


async def test_a_packet_is_explained(node: FakeNode) -> None:
    ran = await run(node.directory, "explain", "pod", "198.51.100.9", "--mark", "0x4000")
    asked = node.masq.replies.asked[-1][1]
    assert (asked.source, asked.destination, asked.mark) == ("", "198.51.100.9", 0x4000)
    assert ran.code == 0
    assert ran.out.splitlines()[0] == samples.explanation().explanation
    assert "-j MASQUERADE --random-fully" in ran.out
    ran = await run(node.directory, "explain", "10.5.2.2", "198.51.100.9", "-o", "json")
    assert node.masq.replies.asked[-1][1].source == "10.5.2.2"
    assert ran.json["masqueraded"] is True
    ran = await run(node.directory, "explain", "pod", "198.51.100.9", "--mark", "kube")
    assert ran.code == 2
    assert "'kube' is no number" in ran.err


async def test_a_packet_is_traced_and_a_surprise_is_1(node: FakeNode) -> None:
    node.masq.replies.by_method["Explain"] = samples.traced()
    ran = await run(node.directory, "explain", "pod", "198.51.100.9", "--trace", "--timeout=7")
    asked = node.masq.replies.asked[-1][1]
    assert (asked.trace, asked.trace_time.seconds) == (True, 7)
    assert ran.code == 0
    assert "waiting up to 7 s for such a packet" in ran.err
    assert "The kernel: UDP 10.5.2.2:4711 > 198.51.100.9:53: It left by eth0 under 192.0.2.1." in ran.out
    surprise = samples.traced()
    surprise.trace.as_explained = False
    node.masq.replies.by_method["Explain"] = surprise
    assert (await run(node.directory, "explain", "pod", "198.51.100.9", "--trace")).code == 1
    assert (await run(node.directory, "explain", "pod", "198.51.100.9", "--trace", "--timeout=61")).code == 2


async def test_one_peer_is_shown_with_its_kernel_objects(node: FakeNode) -> None:
    ran = await run(node.directory, "peers", "h3")
    asked = node.dataplane.replies.asked[0][1]
    assert (asked.name, asked.look) == ("h3", True)
    assert "missing    route 10.5.3.0/24 via 10.5.3.0 dev flannel.1" in ran.out


async def test_an_error_of_the_service_is_printed_as_it_is(node: FakeNode) -> None:
    node.dataplane.replies.by_method["ListPeers"] = (grpc.StatusCode.NOT_FOUND, "no lease has the name h7")
    node.masq.replies.by_method["ListRules"] = (grpc.StatusCode.UNAVAILABLE, "the firewall could not be read")
    ran = await run(node.directory, "peers", "h7")
    assert (ran.code, ran.err) == (1, "flannelette: no lease has the name h7\n")
    ran = await run(node.directory, "rules")
    assert (ran.code, ran.err) == (1, "flannelette: the firewall could not be read\n")


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
    assert (ran.code, ran.json) == (0, {"masq": {}})


async def test_diff_changes_nothing_and_exits_as_diff_does(node: FakeNode) -> None:
    ran = await run(node.directory, "diff")
    assert (ran.code, ran.out) == (1, (await run(node.directory, "resync", "--dry-run")).out)
    assert all(request.dry_run for _, request in node.dataplane.replies.asked)
    ran = await run(node.directory, "diff", "masq", "-o", "json")
    assert (ran.code, ran.json) == (0, {"masq": {}})
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
    ran = await run(node.directory, "teardown", "masq", "--keep-foreign", "--yes")
    assert ran.code == 2
    assert "--keep-foreign is for the dataplane" in ran.err
    ran = await run(node.directory, "teardown", "--keep-foreign", "--dry-run", prefix=("unshare", "-Urn"))
    assert (ran.code, ran.out) == (0, "# dataplane: nothing to do\n")
    ran = await run(node.directory, "teardown", "--keep-foreign", "--dry-run", FLANNELD_ROUTE_PROTOCOL="many")
    assert ran.code == 2
    assert ran.err.startswith("flannelette: dataplane: FLANNELD_ROUTE_PROTOCOL")
    assert not node.dataplane.replies.asked


async def test_version_and_help_do_not_load_grpc(tmp_path: Path) -> None:
    for words in (["version"], ["--version"], ["--help"], ["status", "--help"]):
        ran = await run(tmp_path, *words, PYTHONPROFILEIMPORTTIME="1")
        assert ran.code == 0
        assert not [line for line in ran.err.splitlines() if line.endswith((" grpc", " rich", " google.protobuf"))]


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
