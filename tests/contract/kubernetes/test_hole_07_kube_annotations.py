"""Annotations of a living node that somebody overwrites: the node puts them back, each time."""

from pathlib import Path

import pytest

from tests.kubernetes.api_server import ApiServer
from tests.kubernetes.stores import V4, asks, flannels
from tests.services.follower import Node, running
from tests.services.lease import ServiceProcess, eventually

OVERWRITES: dict[str, dict[str, str | None]] = {
    "garbage": {"backend_data": "garbage"},
    "no address": {"public_ip": "nonsense"},
    "everywhere": {"public_ip": "255.255.255.255"},
    "a MAC of nobody": {"backend_data": '{"VNI":1,"VtepMAC":"02:00:00:00:00:77"}'},
    "somebody's address": {"public_ip": "192.168.0.77"},
    "nothing": {"public_ip": None, "backend_data": None, "kube_subnet_manager": None},
}


@pytest.mark.parametrize("overwrite", OVERWRITES.values(), ids=OVERWRITES)
async def test_hole_07_overwritten_annotations_of_a_living_node_are_put_back(
    kube: ApiServer, tmp_path: Path, overwrite: dict[str, str | None]
) -> None:
    (tmp_path / "net-conf.json").write_text(V4)
    kube.make_node("a", "10.244.1.0/24")
    kubeconfig = f"--kubeconfig-file={kube.kubeconfig()}"
    flags = ("--store=kube", "--central", kubeconfig, f"--net-config-path={tmp_path}/net-conf.json")
    with ServiceProcess(tmp_path, *flags) as process:
        node = Node(process.address, asks("a"))
        async with running(node):
            await eventually(lambda: node.is_settled)
            before = flannels(kube, "a")
            for _ in range(2):
                kube.annotate("a", **overwrite)
                await eventually(lambda: flannels(kube, "a") == before)
                await eventually(lambda: node.is_settled)
