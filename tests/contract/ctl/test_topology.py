"""`flannelette topology` as a process, beside the services of one node and of several."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from flannelette.lease.v1 import lease_pb2
from tests.ctl import samples
from tests.ctl.clusters import context_of
from tests.ctl.fakes import FakeNode
from tests.ctl.process import run


async def test_every_node_of_the_context_is_asked_for_its_links(tmp_path: Path) -> None:
    async with context_of(tmp_path, "h1", "h2", "h3") as (environment, nodes):
        leases = [samples.vxlan_lease(number) for number in (1, 2, 3)]
        for node in nodes.values():
            node.lease.replies.by_method["ListLeases"] = lease_pb2.ListLeasesResponse(leases=leases)
        ran = await run(tmp_path, "topology", **environment)
        assert (ran.code, ran.err) == (1, "")
        assert [line.split()[:3] for line in ran.out.splitlines() if line.startswith("h")] == [
            ["h1", "healthy", "10.5.1.0/24"],
            ["h2", "healthy", "10.5.2.0/24"],
            ["h3", "no", "answer"],
            ["h1", "-", "h2"],
            ["h1", "-", "h3"],
            ["h2", "-", "h3"],
        ]
        ran = await run(tmp_path, "topology", "-o", "json", **environment)
        assert [(link["health"], link["remark"]) for link in ran.json["links"]] == [
            ("HEALTHY", "0.21 ms"),
            ("BROKEN", "failed"),
            ("BROKEN", "failed"),
        ]


@pytest.mark.parametrize(("output", "start"), [("svg", "<svg "), ("dot", "graph "), ("mermaid", "flowchart ")])
async def test_one_node_draws_what_it_knows(node: FakeNode, output: str, start: str) -> None:
    ran = await run(node.directory, "topology", "-o", output)
    assert ran.err == ""
    assert ran.out.startswith(start)
    if output == "svg":
        ElementTree.fromstring(ran.out)  # noqa: S314 - ours


async def test_without_a_lease_service_or_with_another_format_it_says_what_to_do(tmp_path: Path) -> None:
    ran = await run(tmp_path, "topology")
    assert (ran.code, ran.out) == (2, "")
    assert "name it: --lease" in ran.err
    ran = await run(tmp_path, "-o", "table", "topology")
    assert (ran.code, ran.out) == (2, "")
    assert "-o text, svg, dot, mermaid or json" in ran.err
