"""Nodes that are reached by a command, as by ssh: another network namespace, a kubectl that is played."""

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.contract.ctl.test_networks import with_another
from tests.ctl import samples as samples
from tests.ctl.fakes import FakeNode
from tests.ctl.process import Ran, run

Far = Callable[..., str]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A directory with `flannelette`, as a far host has one."""
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin/flannelette"
    path, program = os.pathsep.join(sys.path), f"{sys.executable} -m flannelette.services.ctl.main"
    script.write_text(f'#!/bin/sh\nPYTHONPATH={path} exec {program} "$@"\n')
    script.chmod(0o755)
    return script.parent


def elsewhere(program: Path) -> str:
    """The command that gets to another network namespace, in whose PATH the program is."""
    return f"unshare --net sh -c 'PATH={program}:$PATH exec \"$@\"' sh"


def contexts(tmp_path: Path, text: str) -> dict[str, str]:
    path = tmp_path / "contexts.toml"
    path.write_text(text)
    return {"FLANNELETTE_CONTEXTS": str(path), "FLANNELETTE_CONTEXT": "far"}


async def asked(tmp_path: Path, node: FakeNode, via: str, *words: str, **variables: str) -> Ran:
    text = f"[far.nodes.h1]\nvia = {json.dumps(via)}\nsocket_dir = {json.dumps(str(node.directory))}\n"
    return await run(Path(), *words, prefix=(), **contexts(tmp_path, text), FLANNELETTE_SOCKET_DIR="", **variables)


async def test_a_node_is_asked_through_a_command(node: FakeNode, tmp_path: Path, program: Path) -> None:
    here = await run(node.directory, "leases")
    there = await asked(tmp_path, node, elsewhere(program), "leases")
    assert (there.code, there.out, there.err) == (here.code, here.out, here.err)


async def test_no_socket_of_ours_is_left(node: FakeNode, tmp_path: Path, program: Path) -> None:
    home = tmp_path / "tmp"
    home.mkdir()
    ran = await asked(tmp_path, node, elsewhere(program), "status", TMPDIR=str(home))
    assert ran.out
    assert list(home.iterdir()) == []


async def test_what_a_node_calls_its_networks_is_run_by_no_shell(
    node: FakeNode, tmp_path: Path, program: Path
) -> None:
    """ssh gives what it shall run there to a shell; root's perhaps, and the services have fewer rights."""
    status = samples.dataplane_status()
    status.networks.extend(["blue", f"$(touch${{IFS}}{tmp_path}/here)"])
    node.dataplane.replies.by_method["GetStatus"] = status
    as_ssh = f"sh -c 'PATH={program}:$PATH; eval \"$*\"' sh"
    for command in ("doctor", "top"):
        ran = await asked(tmp_path, node, as_ssh, command)
        assert ran.out, ran.err
        assert not (tmp_path / "here").exists()


@pytest.mark.parametrize("names", [("default", "red"), ("blue", "red")])
async def test_networks_whose_services_are_apart_are_found_there(
    node: FakeNode, tmp_path: Path, program: Path, names: tuple[str, str]
) -> None:
    others = [with_another(node, tmp_path / name, name) for name in names if name != "default"]
    for other in others:
        await other.start()
    if "default" not in names:
        await node.stop()
    (node.directory / "dataplane-$(id).sock").touch()
    found: list[object] = []
    for command, rows in (
        ("status", r"^h1/(\S+) +healthy"),
        ("doctor", r"^--- network (\w+) ---"),
    ):
        ran = await asked(tmp_path, node, elsewhere(program), command)
        found.append(re.findall(rows, ran.out, re.M) or ran)
    ran = await asked(tmp_path, node, elsewhere(program), "--network=red", "peers")
    for other in others:
        await other.stop()
    assert found == [list(names)] * 2
    assert "10.5.2.0/24" in ran.out, ran.err
    assert "ListPeers" in [method for method, _ in others[-1].dataplane.replies.asked]


async def test_what_the_far_side_says_is_the_error(node: FakeNode, tmp_path: Path, program: Path) -> None:
    (node.directory / "dataplane.sock").unlink()
    ran = await asked(tmp_path, node, elsewhere(program), "peers")
    assert ran.code == 2
    assert ran.err.startswith("flannelette: `unshare --net sh -c ")
    assert ran.err.endswith("/dataplane.sock: start flannelette-dataplane, or check --socket-dir\n")


@pytest.mark.parametrize(
    ("via", "words"),
    [
        ("sh -c 'echo Permission denied >&2; exit 255'", "Permission denied"),
        ("sh -c 'exit 7'", "exit code 7"),
        ("/no/such/program", "cannot run /no/such/program: No such file or directory"),
    ],
)
async def test_a_command_that_fails_is_named_with_its_reason(
    node: FakeNode, tmp_path: Path, via: str, words: str
) -> None:
    ran = await asked(tmp_path, node, via, "peers")
    assert ran.code == 2
    assert ran.err.startswith("flannelette: `")
    assert ran.err.endswith(f"`: {words}\n")


async def test_a_service_that_does_not_run_there_is_missing_and_not_broken(
    node: FakeNode, tmp_path: Path, program: Path
) -> None:
    """As on the node itself: a lease service is central where the dataplane is connected to one."""
    (node.directory / "lease.sock").unlink()
    here = await run(node.directory, "status")
    there = await asked(tmp_path, node, elsewhere(program), "status")
    assert there.out.splitlines()[:1] == here.out.splitlines()[:1], there.err
    assert there.code == here.code


KUBECTL = """#!/bin/sh
namespace=$2; shift 2
case "$*" in
"--namespace=net get pods --selector=app=flannel --output=json") cat {pods} ;;
"--namespace=net exec --stdin ds-b --container=dataplane -- "*) shift 6; PATH={program}:$PATH exec "$@" ;;
*) echo "noise" >&2; echo "error: pod $* is not here" >&2; exit 1 ;;
esac
"""


@pytest.fixture
def cluster(tmp_path: Path, program: Path) -> str:
    pods = [("ds-b", {"nodeName": "b"}), ("ds-a", {"nodeName": "a"}), ("ds-c", {})]
    (tmp_path / "pods").write_text(json.dumps({"items": [{"metadata": {"name": n}, "spec": s} for n, s in pods]}))
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(KUBECTL.format(pods=tmp_path / "pods", program=program))
    kubectl.chmod(0o755)
    return f'[far]\nkubernetes = true\nkubectl = "{kubectl} --context prod"\nnamespace = "net"\n'


async def test_the_nodes_of_a_cluster_are_found_and_asked_by_kubectl(
    node: FakeNode, tmp_path: Path, cluster: str
) -> None:
    variables = contexts(tmp_path, cluster)
    ran = await run(node.directory, "--on", "b", "rules", prefix=(), **variables)
    assert (ran.code, ran.out) == (0, (await run(node.directory, "rules")).out)
    ran = await run(node.directory, "--on", "a", "rules", prefix=(), **variables)
    assert (ran.code, ran.out) == (2, "")
    assert "error: pod --namespace=net exec --stdin ds-a" in ran.err
    ran = await run(node.directory, "--on", "x", "rules", prefix=(), **variables)
    assert "the context far has no node 'x'; it has: a, b" in ran.err


async def test_a_kubectl_that_fails_is_said(tmp_path: Path, cluster: str) -> None:
    ran = await run(tmp_path, "status", prefix=(), **contexts(tmp_path, cluster.replace('"net"', '"nets"')))
    assert ran.code == 2
    assert "get pods`: error: pod --namespace=nets get pods" in ran.err


async def test_dial_stdio_wants_no_terminal_and_a_socket(tmp_path: Path) -> None:
    ran = await run(tmp_path, "--masq", "127.0.0.1:1", "dial-stdio", "masq")
    assert (ran.code, "127.0.0.1:1 is no socket" in ran.err) == (2, True)
