"""The command line as a person uses it: the standing of a node, exit codes, and what is said when nobody answers."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as grpc_health

from flannelette.cloud.v1 import cloud_pb2, cloud_pb2_grpc
from tests.ctl import nodes as ctl_nodes
from tests.ctl import samples as samples
from tests.ctl.fakes import FakeNode
from tests.ctl.process import run
from tests.patience import PATIENCE


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
    assert (ran.code, ran.out) == (0, "h1: no problems found\n")
    status = samples.masq_status()
    status.status.masquerade = False
    status.status.findings.add(problem="The kernel forwards no IPv4 packets.", cure="sysctl -w net.ipv4.ip_forward=1")
    node.masq.replies.by_method["GetStatus"] = status
    ran = await run(node.directory, "doctor", "masq", "-o", "json")
    assert ran.code == 1
    assert [problem["cure"] for problem in ran.json["problems"]] == [
        "flannelette-masq --ip-masq",
        "sysctl -w net.ipv4.ip_forward=1",
    ]
    assert (await run(node.directory, "doctor", "lease", "dataplane")).code == 0
    await node.stop("masq")
    ran = await run(node.directory, "doctor", "masq")
    assert ran.code == 2
    assert "start flannelette-masq" in ran.out


@asynccontextmanager
async def cloud_beside(node: FakeNode) -> AsyncIterator[None]:
    """A flannelette-cloud on the node, with a finding."""

    class Cloud(cloud_pb2_grpc.CloudServiceServicer):
        async def GetStatus(self, request: Any, context: Any) -> cloud_pb2.GetStatusResponse:  # noqa: N802
            found = cloud_pb2.Finding(problem="A route is refused.", cure="sysctl -w net.ipv4.ip_forward=1")
            return cloud_pb2.GetStatusResponse(findings=[found])

    server = grpc.aio.server()
    cloud_pb2_grpc.add_CloudServiceServicer_to_server(Cloud(), server)  # type: ignore[abstract]  # the one call that counts
    server.add_insecure_port(f"unix:{node.directory}/cloud.sock")
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)


async def test_the_doctor_of_several_networks_tells_the_problems_of_the_cloud_once(node: FakeNode) -> None:
    status = samples.dataplane_status()
    status.networks[:] = ["blue", "red"]
    node.dataplane.replies.by_method["GetStatus"] = status
    async with cloud_beside(node):
        ran = await run(node.directory, "doctor")
    assert re.findall(r"^--- network (\w+) ---$|(A route is refused)", ran.out, re.M) == [
        ("blue", ""),
        ("", "A route is refused"),
        ("red", ""),
    ], ran.out


async def test_the_routes_of_a_cloud_are_those_of_all_nodes_of_a_context(node: FakeNode, tmp_path: Path) -> None:
    contexts = tmp_path / "contexts.toml"
    contexts.write_text("".join(f'[c.nodes.{name}]\nsocket_dir = "{node.directory}"\n' for name in ("n1", "n2")))
    variables: dict[str, Any] = {"FLANNELETTE_CONTEXTS": str(contexts), "FLANNELETTE_SOCKET_DIR": ""}
    async with cloud_beside(node):
        ran = await run(node.directory, "--context=c", "cloud", "status", **variables)
    assert (ran.err, ran.out.startswith("cloud: not ready")) == ("", True)


async def test_the_doctor_carries_out_nothing_that_the_process_of_a_cloud_advises(node: FakeNode) -> None:
    """It is told with the others, and changes no kernel."""
    async with cloud_beside(node):
        ran = await run(node.directory, "doctor", "--fix", "--yes", "-o", "json")
    assert (ran.code, ran.json["fixed"]) == (1, []), ran.err
    assert [each["symptom"] for each in ran.json["problems"] if each["service"] == "cloud"] == ["A route is refused."]


async def test_the_doctor_asks_every_node_of_a_context_and_tells_a_shared_problem_once(
    node: FakeNode, tmp_path: Path
) -> None:
    status = samples.masq_status()
    status.status.findings.add(problem="The kernel forwards no IPv4 packets.", cure="sysctl -w net.ipv4.ip_forward=1")
    node.masq.replies.by_method["GetStatus"] = status
    lost = samples.dataplane_status()
    finding = lost.status.findings.add(problem="Packets from pods do not reach h2.", check="peer-route", broken=True)
    finding.cause, finding.evidence, finding.cure = "A rule drops these packets.", "ip route get: none", "ip rule del"
    node.dataplane.replies.by_method["GetStatus"] = lost
    contexts = tmp_path / "contexts.toml"
    places = {"h1": node.directory, "h2": node.directory, "h3": tmp_path / "away"}
    contexts.write_text("".join(f'[lab.nodes.{name}]\nsocket_dir = "{path}"\n' for name, path in places.items()))
    words = ("--context", "lab", "doctor")
    ran = await run(tmp_path, *words, "-o", "json", FLANNELETTE_CONTEXTS=str(contexts), FLANNELETTE_SOCKET_DIR="")
    assert (ran.code, ran.json["nodes"]) == (1, ["h1", "h2", "h3"])
    assert [(each["weight"], each["service"], each["nodes"]) for each in ran.json["problems"]] == [
        ("BROKEN", "dataplane", ["h1", "h2"]),
        ("SOON", "", ["h3"]),
        ("WARNING", "masq", ["h1", "h2"]),
    ]
    assert {"cause", "cure", "evidence", "check"} <= ran.json["problems"][0].keys()
    ran = await run(tmp_path, *words, "--on", "h3", FLANNELETTE_CONTEXTS=str(contexts), FLANNELETTE_SOCKET_DIR="")
    assert ran.code == 2


async def test_the_doctor_shows_what_nodes_have_told_a_central_lease_service(node: FakeNode) -> None:
    answer = ctl_nodes.nodes()
    answer.nodes[1].findings.add(problem="No packets reach h3.", check="peer-route", broken=True)
    answer.nodes[1].version = answer.nodes[2].version = "9.9.9"
    answer.nodes[2].connected = False
    node.lease.replies.by_method["ListNodes"] = answer
    ran = await run(node.directory, "doctor", "--all", "-o", "json")
    assert (ran.code, ran.json["nodes"]) == (1, ["h1", "h2", "h3"])
    assert [(each["weight"], each["service"], each["nodes"]) for each in ran.json["problems"]] == [
        ("BROKEN", "dataplane", ["h2"]),
        ("SOON", "lease", ["h3"]),
        ("WARNING", "", []),
    ]
    assert ran.json["problems"][2]["evidence"] == "0.1.0: h1; 9.9.9: h2, h3"
    assert (await run(node.directory, "nodes")).code == 1
    assert ran.json["reported"] == ["h2", "h3"]
    assert "of h2, h3 this is what dataplanes have told" in (await run(node.directory, "doctor", "--all")).err
    assert "No packets reach h3." in (await run(node.directory, "nodes")).out
    await node.stop("lease")
    ran = await run(node.directory, "doctor", "--all")
    assert (ran.code, ran.out) == (2, "")


async def test_the_doctor_compares_clocks_and_versions_of_the_services(node: FakeNode) -> None:
    lease, dataplane = samples.lease_status(), samples.dataplane_status()
    lease.time.FromSeconds(1_000_000)
    dataplane.time.FromSeconds(1_000_009)
    node.lease.replies.by_method["GetStatus"], node.dataplane.replies.by_method["GetStatus"] = lease, dataplane
    assert (await run(node.directory, "doctor")).code == 0
    dataplane.time.FromSeconds(1_000_061)
    lease.version = "9.9.9"
    lease.findings.add(problem="The certificate in /etc/a.crt runs out.", check="certificate", soon=True)
    ran = await run(node.directory, "doctor", "-o", "json")
    assert [(each["weight"], each["check"], each["symptom"]) for each in ran.json["problems"]] == [
        ("SOON", "certificate", "The certificate in /etc/a.crt runs out."),
        ("WARNING", "clock", "The clock of this host is 61 s ahead of that of the lease service."),
        ("WARNING", "version", "The services have different versions."),
    ]


async def test_the_headline_and_the_exit_code_of_status_say_what_the_doctor_knows(node: FakeNode) -> None:
    status = samples.masq_status()
    status.status.findings.add(problem="The kernel forwards no IPv4 packets.", cure="sysctl -w net.ipv4.ip_forward=1")
    node.masq.replies.by_method["GetStatus"] = status
    ran = await run(node.directory, "status")
    assert (ran.code, ran.out.splitlines()[0]) == (1, "h1 is degraded: 1 problem")
    status.status.findings[0].check = "forwarding-off"
    ran = await run(node.directory, "status")
    assert (ran.code, ran.out.splitlines()[0]) == (0, "h1 is healthy, 1 warning: `flannelette doctor`")
    lost = samples.dataplane_status()
    lost.status.findings.add(problem="No answer comes from h2.", remote=True)
    node.dataplane.replies.by_method["GetStatus"], status.status.findings[0].broken = lost, True
    ran = await run(node.directory, "status")
    assert (ran.code, ran.out.splitlines()[0]) == (1, "h1 is not healthy: 1 problem")
    node.masq.replies.by_method["GetStatus"] = samples.masq_status()
    ran = await run(node.directory, "status")
    assert (ran.code, ran.out.splitlines()[0]) == (0, "h1 is healthy")
    assert (await run(node.directory, "doctor")).code == 1


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
    start = "start flannelette-lease, flannelette-dataplane and flannelette-masq, or check --socket-dir"
    for directory in (tmp_path, tmp_path / "none"):
        ran = await run(directory, "doctor", "-o", "json")
        (problem,) = ran.json["problems"]
        assert (ran.code, problem["cure"], "start" in problem["cause"]) == (2, start, False)


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


async def test_a_service_of_an_older_release_that_lacks_a_call_is_said(tmp_path: Path) -> None:
    older = grpc.aio.server()
    health = grpc_health.HealthServicer()
    await health.set("flannelette.lease.v1.LeaseService", health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(health, older)
    older.add_insecure_port(f"unix:{tmp_path}/lease.sock")
    await older.start()
    ran = await run(tmp_path, "leases")
    await older.stop(None)
    assert ran.code == 1
    assert "is of an older release, which does not have this call: upgrade it" in ran.err


@pytest.mark.parametrize(
    "words",
    [["nonsense"], ["status", "-o", "xml"], ["--lease", "nonsense", "leases"], ["teardown"], ["resync", "lease"]],
)
async def test_wrong_usage_is_2(node: FakeNode, words: list[str]) -> None:
    ran = await run(node.directory, *words)
    assert (ran.code, ran.out) == (2, "")
    assert "Error: " in ran.err


async def test_version_and_help_do_not_load_grpc(tmp_path: Path) -> None:
    for words in (["version"], ["--version"], ["--help"], ["help"], ["help", "options"]):
        ran = await run(tmp_path, *words, PYTHONPROFILEIMPORTTIME="1")
        assert ran.code == 0
        assert not [line for line in ran.err.splitlines() if line.endswith((" grpc", " rich", " google.protobuf"))]


@pytest.mark.parametrize("word", ["version", "--help"])
def test_output_that_cannot_be_written_is_one_line(word: str) -> None:
    """The disk is full, as /dev/full is."""
    line = (sys.executable, "-m", "flannelette.services.ctl.main", word)
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=PATIENCE)
    expected = (1, "flannelette: cannot write what is printed: No space left on device\n")
    assert (ran.returncode, ran.stderr) == expected
