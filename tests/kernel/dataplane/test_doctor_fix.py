"""`flannelette doctor --fix`: what it carries out on this host, and that it changes no other."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from flannelette.lease.v1 import lease_pb2
from flannelette.services.core.cure import Command
from flannelette.services.ctl.commands.doctor import carry_out, objection_to
from flannelette.services.ctl.host import own_subnets
from tests.ctl import samples
from tests.ctl.fakes import FakeNode
from tests.ctl.process import run
from tests.ctl.terminal import on_terminal
from tests.hosts.dataplane import VXLAN, Cluster, Running, cluster_in, environment
from tests.hosts.namespaces import NetworkNamespace
from tests.patience import PATIENCE
from tests.waiting import eventually

OWN = "10.5.27.1/24"
STRANGER = 65001
PLAYED = f"""
import asyncio, os, sys
import grpc.aio
from flannelette.dataplane.v1 import dataplane_pb2 as pb, dataplane_pb2_grpc

class Played(dataplane_pb2_grpc.DataplaneServiceServicer):
    async def GetStatus(self, request, context):
        answer = pb.GetStatusResponse()
        answer.status.node = "n1"
        finding = answer.status.findings.add(problem="Pods are cut off.", check="bridge-down", broken=True)
        finding.commands.add(code="link-up", arguments=["cni0"])
        return answer

async def main():
    server = grpc.aio.server()
    dataplane_pb2_grpc.add_DataplaneServiceServicer_to_server(Played(), server)
    server.add_insecure_port("unix:" + sys.argv[1])
    await server.start()
    print("ready", flush=True)
    await server.wait_for_termination()

try:
    os.setuid({STRANGER})
except OSError:
    sys.exit("no")
asyncio.run(main())
"""
FORWARDING = "sysctl -n net.ipv4.conf.cni0.forwarding"


async def test_a_safe_cure_is_carried_out_where_the_service_runs_and_nowhere_else(netns: NetworkNamespace) -> None:
    with cluster_in(netns, VXLAN) as cluster:
        for line in (
            "link add cni0 type bridge",
            "link add pod type veth peer name far-pod",
            "link set pod master cni0 up",
            "link set far-pod up",
            "link set cni0 up",
        ):
            cluster.ip(line)
        cluster.run("sysctl -qw net.ipv4.ip_forward=1")
        async with cluster.dataplane() as running:
            await running.until()
            own = (await running.status()).lease.subnets[0].replace(".0/24", ".1/24")
            cluster.ip(f"address add {own} dev cni0")
            cluster.run("sysctl -qw net.ipv4.conf.cni0.forwarding=0")
            await found(running, "forwarding-off")
            assert [each.check for each in await told(cluster, is_wrong=True)] == ["forwarding-off"]
            code, text = await doctor(cluster, "--fix", "--yes", where="outside")
            assert code == 1
            assert (
                "the service runs in another network namespace; run `flannelette doctor --fix` on that node" in text
            )
            assert cluster.run(FORWARDING).strip() == "0"
            code, text = await doctor(cluster, "--fix", where="inside")
            assert code == 2
            assert "there is no terminal to ask on: give --yes" in text
            code, text = await doctor(cluster, "--fix", "--yes", where="inside")
            assert (code, text.splitlines()[-1]) == (0, "n1: no problems found")
            assert "To be carried out on this host:\n  sysctl -w net.ipv4.conf.cni0.forwarding=1\n" in text
            assert cluster.run(FORWARDING).strip() == "1"
            await told(cluster, is_wrong=False)


HOSTILE_ROUTES = ("0.0.0.0/1", "10.96.0.1/32", "169.254.169.254/32")


async def test_what_a_hostile_dataplane_sends_as_cures_changes_nothing(tmp_path: Path) -> None:
    """Text, and commands of the right types whose arguments are not those of this host's own subnet."""
    subnet_file = tmp_path / "subnet.env"
    subnet_file.write_text(f"FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET={OWN}\n")
    node = FakeNode(tmp_path)
    status = samples.dataplane_status()
    for text in (*(f"ip route add {each} dev lo" for each in HOSTILE_ROUTES), "sysctl -w net.ipv4.ip_forward=1"):
        status.status.findings.add(problem="Something.", check="bridge-route", cure=text, broken=True)
    for code, arguments in (
        *(("bridge-route", (each, device, "10.5.27.1")) for each in HOSTILE_ROUTES for device in ("lo", "cni0")),
        ("bridge-route", ("10.5.27.0/24", "lo", "10.5.27.1")),
        ("bridge-address", ("169.254.169.254/32", "lo")),
        ("bridge-address", (OWN, "lo")),
        ("bridge-address", ("10.5.28.1/24", "cni0")),
        ("link-up", ("spare",)),
        ("link-up", ("apart",)),
        ("sysctl", ("net.ipv4.conf.all.rp_filter=2",)),
        ("offload-off", ("spare", "tx-checksum-ip-generic")),
    ):
        finding = status.status.findings.add(problem=f"{code} {arguments}", check="bridge-route", broken=True)
        finding.commands.add(code=code, arguments=arguments)
    node.dataplane.replies.by_method["GetStatus"] = status
    with devices("cni0 type bridge", "spare type veth peer name far", "apart type bridge"):
        ip("addr add 10.77.0.1/24 dev apart")
        before = everything()
        await node.start("lease", "dataplane", "masq")
        ran = await run(tmp_path, "doctor", "--fix", "--yes", "-o", "json", FLANNELD_SUBNET_FILE=str(subnet_file))
        await node.stop("lease", "dataplane", "masq")
        assert (ran.code, ran.json["fixed"]) == (1, []), ran.err
        assert everything() == before
    for said in (
        "no subnet file of this node says 0.0.0.0/1",
        "no subnet file of this node says 10.5.28.1/24",
        "there is no bridge lo",
        "there is no bridge spare",
        "apart has 10.77.0.1/24, which lies outside of this node's own subnet",
    ):
        assert f"not carried out, because {said}" in ran.err


async def test_of_a_socket_of_another_user_nothing_is_carried_out(tmp_path: Path) -> None:
    """The lease service's user, in the dataplane's place: what it says is right, and is not believed."""
    with devices("cni0 type bridge"), TemporaryDirectory() as place:
        os.chmod(place, 0o777)  # noqa: PTH101, S103 - at once, for a stranger
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", PLAYED, f"{place}/dataplane.sock"),
            stdout=asyncio.subprocess.PIPE,
            env=environment(),
        )
        try:
            assert process.stdout is not None
            if await asyncio.wait_for(process.stdout.readline(), PATIENCE) != b"ready\n":
                pytest.skip("needs a second user in this namespace: run as root")
            subnet_file = tmp_path / "subnet.env"
            subnet_file.write_text(f"FLANNEL_SUBNET={OWN}\n")
            ran = await run(
                Path(place), "doctor", "dataplane", "--fix", "--yes", FLANNELD_SUBNET_FILE=str(subnet_file)
            )
        finally:
            process.kill()
            await process.wait()
        assert "ip link set cni0 up" in ran.out
        assert f"user {STRANGER} listens at" in ran.err
        assert "UP" not in ip("-o link show cni0").split("<")[1].split(">")[0].split(",")


def test_a_subnet_file_that_others_can_write_says_nothing(tmp_path: Path) -> None:
    subnet_file = tmp_path / "subnet.env"
    subnet_file.write_text(f"FLANNEL_SUBNET={OWN}\n")
    assert [str(each) for each in own_subnets(subnet_file)] == [OWN]
    subnet_file.chmod(0o666)
    assert not own_subnets(subnet_file)
    subnet_file.chmod(0o644)
    tmp_path.chmod(0o777)
    assert not own_subnets(subnet_file)


async def test_ctrl_c_at_the_question_ends_it_and_changes_nothing(tmp_path: Path) -> None:
    """Once is enough: a loop that runs meanwhile would take the first one for itself."""
    node, status = FakeNode(tmp_path), samples.dataplane_status()
    finding = status.status.findings.add(problem="Pods are cut off.", check="bridge-down", broken=True)
    finding.commands.add(code="link-up", arguments=["cni0"])
    node.dataplane.replies.by_method["GetStatus"] = status
    with devices("cni0 type bridge"):
        await node.start("lease", "dataplane", "masq")
        async with on_terminal(tmp_path, "doctor", "dataplane", "--fix") as terminal:
            await terminal.until("Carry this out?")
            terminal.type("\x03")
            assert await terminal.ended() == 1
        await node.stop("lease", "dataplane", "masq")
        assert "state DOWN" in ip("link show cni0")


async def test_what_the_bridge_has_lost_is_put_back_where_it_is_this_nodes_own(tmp_path: Path) -> None:
    subnet_file = tmp_path / "subnet.env"
    subnet_file.write_text(f"FLANNEL_SUBNET={OWN}\n")
    own = own_subnets(subnet_file)
    with devices("cni0 type bridge"):
        for command in (
            Command("link-up", "cni0"),
            Command("bridge-address", OWN, "cni0"),
            Command("bridge-route", "10.5.27.0/24", "cni0", "10.5.27.1"),
        ):
            if command.code == "bridge-route":
                ip("route del 10.5.27.0/24 dev cni0")
            assert await objection_to(command, own) == ""
            await carry_out(command)
            if command.code != "bridge-route":
                assert await objection_to(command, own) != ""
        assert "10.5.27.0/24 dev cni0 proto kernel scope link src 10.5.27.1" in ip("route show")


@contextmanager
def devices(*made: str) -> Iterator[None]:
    """Devices in the namespace of this worker."""
    names = [each.split()[0] for each in made]
    try:
        for each in made:
            ip(f"link add {each}")
        yield
    finally:
        for name in names:
            subprocess.run(["ip", "link", "del", name], check=False, capture_output=True)


def ip(words: str) -> str:
    return subprocess.run(["ip", *words.split()], check=True, capture_output=True, text=True).stdout


def everything() -> list[str]:
    return [ip(each) for each in ("addr show", "route show table all", "-6 route show table all", "link show")]


async def found(running: Running, check: str) -> None:
    await eventually(running.status, lambda status: check in [each.check for each in status.findings])


async def told(cluster: Cluster, *, is_wrong: bool) -> list[lease_pb2.Finding]:
    """What the lease service shows of the node, once it has problems, or none any more."""
    async with cluster.calls() as calls:
        answer = await eventually(
            lambda: calls.ListNodes(lease_pb2.ListNodesRequest()),
            lambda answer: [bool(node.findings) for node in answer.nodes] == [is_wrong],
        )
    (node,) = answer.nodes
    assert node.version
    return [*node.findings]


async def doctor(cluster: Cluster, *words: str, where: str) -> tuple[int, str]:
    directory = f"--socket-dir={cluster.directory}"
    command = (sys.executable, "-m", "flannelette.services.ctl.main", directory, "doctor", "dataplane", *words)
    process = await asyncio.create_subprocess_exec(
        *(cluster.namespace.command(*command) if where == "inside" else command),
        env=environment(),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(PATIENCE):
        out, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode()
