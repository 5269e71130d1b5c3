"""Which nodes have a change: what the lease service says, against what the kernels of the lab's hosts say."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.lab_process import LabProcess, lab
from tests.patience import PATIENCE
from tests.waiting import eventually_sync

HOSTS = ("h1", "h2", "h3")


@pytest.fixture(scope="module")
def process() -> Iterator[LabProcess]:
    with tempfile.TemporaryDirectory(prefix="fl-") as home, lab(Path(home)) as started:
        started.until_printed("Ctrl-C ends the lab")
        yield started


def flannelette(process: LabProcess, *words: str) -> subprocess.CompletedProcess[str]:
    """The command line, asking the lab's central lease service."""
    command = [
        sys.executable,
        "-m",
        "flannelette.services.ctl.main",
        "--lease",
        f"{process.directory}/lease/lease.sock",
        *words,
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=2 * PATIENCE)


def join(process: LabProcess, number: int) -> str:
    """A node that does not exist takes a lease; the address that its routes go to."""
    program = f"""
import grpc
from flannelette.lease.v1 import lease_pb2 as pb, lease_pb2_grpc
part = pb.Subnet(public_address="10.99.0.{number}", vxlan=pb.VxlanData(vni=1, mac="02:00:00:00:00:{number:02x}"))
request = pb.AcquireLeaseRequest(node="n{number}", backend_type="vxlan", subnets=[part])
with grpc.insecure_channel("unix:{process.directory}/lease/lease.sock") as channel:
    print(lease_pb2_grpc.LeaseServiceStub(channel).AcquireLease(request, timeout={PATIENCE}).lease.name)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return done.stdout.strip().split("-")[0]


def routes(process: LabProcess, host: str) -> str:
    return process.carry_out("route", lambda command: command.replace(" h1 ", f" {host} "))


def nodes(process: LabProcess) -> dict[str, Any]:
    """By name, from ListNodes."""
    return {node["name"]: node for node in json.loads(flannelette(process, "nodes", "-o", "json").stdout)["nodes"]}


def dataplane_of(process: LabProcess, host: str) -> int:
    (pid,) = (pid for pid, line in process.processes().items() if f"dataplane.main --node={host}" in line)
    return pid


def test_when_a_change_has_converged_it_is_in_every_hosts_kernel(process: LabProcess) -> None:
    for number in (101, 102, 103):
        gateway = join(process, number)
        ran = flannelette(process, "wait", "--converged", f"--timeout={PATIENCE:g}")
        assert (ran.returncode, ran.stderr) == (0, "")
        assert ran.stdout.startswith("converged: 3 nodes at ")
        for host in HOSTS:
            assert f"via {gateway} dev flannel.1" in routes(process, host)


def test_a_stopped_dataplane_is_pending_until_it_goes_on(process: LabProcess) -> None:
    pid = dataplane_of(process, "h2")
    os.kill(pid, signal.SIGSTOP)
    try:
        gateway = join(process, 111)
        ran = flannelette(process, "wait", "--converged", "--timeout=1")
        assert ran.returncode == 1
        first, _, row, *_ = ran.stdout.splitlines()
        assert first.endswith("1 node pending, 2 nodes done")
        assert row.split()[:1] == ["h2"]
        assert gateway not in routes(process, "h2")
        assert nodes(process)["h2"]["behind"] == 1
    finally:
        os.kill(pid, signal.SIGCONT)
    assert flannelette(process, "wait", "--converged", f"--timeout={PATIENCE:g}").returncode == 0
    assert gateway in routes(process, "h2")


def test_a_killed_dataplane_is_not_connected_and_keeps_nobody_waiting(process: LabProcess) -> None:
    os.kill(dataplane_of(process, "h3"), signal.SIGKILL)
    eventually_sync(lambda: nodes(process)["h3"], lambda node: not node.get("connected"))
    ran = flannelette(process, "wait", "--converged", f"--timeout={PATIENCE:g}")
    assert ran.returncode == 0
    eventually_sync(lambda: nodes(process)["h3"], lambda node: node["connected"] and node.get("behind") == 0)
    assert flannelette(process, "wait", "--converged").stdout.startswith("converged: 3 nodes at ")


def test_ready_and_converged_can_be_waited_for_together(process: LabProcess) -> None:
    home = f"--socket-dir={process.directory}/h1"
    ran = flannelette(process, home, "wait", "--ready", "--converged")
    assert (ran.returncode, ran.stderr) == (0, "")
