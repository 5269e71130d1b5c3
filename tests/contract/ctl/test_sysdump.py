"""`flannelette sysdump` of nodes that kubectl reaches, container by container; where it cannot write."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from tests.contract.ctl.test_dial import cluster as cluster
from tests.contract.ctl.test_dial import contexts
from tests.contract.ctl.test_dial import program as program
from tests.ctl.fakes import FakeNode
from tests.ctl.process import run
from tests.ctl.sysdump import unpacked
from tests.patience import PATIENCE

LOGS = """"--namespace=net logs ds-b --tail=5000 --container=dataplane") echo "password=hunter2 peer added" ;;
"--namespace=net exec --stdin ds-b --container=masq -- "*) shift 6; PATH={program}:$PATH exec "$@" ;;
*) echo"""


@pytest.mark.parametrize("network", ["", "blue"])
async def test_each_node_of_a_cluster_has_a_directory_with_the_logs_of_its_pod(
    node: FakeNode, tmp_path: Path, cluster: str, program: Path, network: str
) -> None:
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(kubectl.read_text().replace("*) echo", LOGS.format(program=program), 1))
    variables = contexts(tmp_path, cluster) | {"FLANNELETTE_NETWORK": network}
    (node.directory / "lease-blue.sock").symlink_to("lease.sock")
    archive = tmp_path / "all.tar.gz"
    ran = await run(node.directory, "sysdump", "-w", str(archive), prefix=(), **variables)
    assert (ran.code, ran.err) == (0, "")
    files = unpacked(archive.read_bytes())
    assert '"leases": [' in files["b/leases.json"]
    assert files["b/logs/pod-dataplane.txt"].endswith("password=(left out) peer added\n")
    assert "net/ipv4/ip_forward = " in files["b/kernel/sysctls.txt"]
    assert files["a/leases.json"].startswith("not collected: ")
    assert files["a/host.txt"].startswith("not collected: ")
    assert "host.txt of a: " in files["README"]
    assert "b/host.txt" not in files
    assert not any("--previous" in name for name in files)


@pytest.mark.parametrize("place", ["", "/no/such/directory/x.tar.gz"])
async def test_a_file_that_cannot_be_made_is_said_before_anything_is_asked(
    node: FakeNode, tmp_path: Path, place: str
) -> None:
    there = tmp_path / "x.tar.gz"
    there.write_text("not yours")
    ran = await run(node.directory, "sysdump", "-w", place or str(there))
    assert ran.code == 2
    assert "give --write FILE, a new one" in ran.err
    assert there.read_text() == "not yours"
    assert node.lease.replies.asked == []


POINTING = """
import os, socket, sys, time
listening = socket.socket(socket.AF_UNIX)
listening.bind(sys.argv[1])
listening.listen()
os.dup2(os.open(sys.argv[2], int(sys.argv[3])), 2)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(("flags", "is_read"), [(os.O_PATH, False), (os.O_RDONLY, False), (os.O_WRONLY, True)])
async def test_the_log_of_a_service_is_a_file_that_it_writes_and_none_that_it_points_at(
    tmp_path: Path, flags: int, is_read: bool
) -> None:
    """A service that was taken over can point at any file, without the right to read it; root would read it then."""
    shadow = tmp_path / "shadow"
    shadow.write_text("root:for nobody\n")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", POINTING, str(tmp_path / "lease.sock"), str(shadow), str(flags)),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        await asyncio.wait_for(process.stdout.readline(), PATIENCE)
        archive = tmp_path / "x.tar.gz"
        await run(tmp_path, "sysdump", "--timeout", "3", "-w", str(archive))
        text = "\n".join(unpacked(archive.read_bytes()).values())
    finally:
        process.kill()
        await process.wait()
    assert ("for nobody" in text) is is_read
