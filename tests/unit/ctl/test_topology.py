"""The picture of a cluster of 3, 8 and 300 nodes, in each format."""

import re
import shutil
import subprocess
from collections.abc import Callable
from xml.etree import ElementTree

import pytest

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from flannelette.lease.v1 import lease_pb2
from flannelette.services.ctl.commands.topology import (
    Topology,
    dot,
    mermaid,
    read_topology,
    svg,
    topology_text,
)
from flannelette.services.ctl.problems import Overall
from tests import paths
from tests.ctl import samples
from tests.ctl.clusters import topology

_SVG = "{http://www.w3.org/2000/svg}"
_SIZES = (1, 3, 8, 300)

RENDERED: dict[str, Callable[[], str]] = {
    "topology-3.txt": lambda: topology_text(topology(3), 80).plain + "\n",
    "topology-300.txt": lambda: topology_text(topology(300), 80).plain + "\n",
    "topology-3.dot": lambda: dot(topology(3)),
    "topology-300.dot": lambda: dot(topology(300)),
    "topology-3.mmd": lambda: mermaid(topology(3)),
    "topology-300.mmd": lambda: mermaid(topology(300)),
}


@pytest.mark.parametrize("name", RENDERED)
def test_text_is_as_recorded(name: str) -> None:
    """To record anew: delete the file, run the test twice, and read the difference."""
    path, text = paths.GOLDEN / "ctl" / name, RENDERED[name]()
    if not path.exists():
        path.write_text(text)
        pytest.fail(f"recorded {path.name}: read it, then run the test again")
    assert text == path.read_text()
    assert not name.endswith("txt") or max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("size", _SIZES)
def test_an_svg_is_xml_in_which_everything_is_inside_the_picture(size: int) -> None:
    root = ElementTree.fromstring(svg(topology(size)))  # noqa: S314 - ours
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    for text in root.iter(f"{_SVG}text"):
        assert 0 <= float(text.attrib["x"]) <= width
        assert 0 <= float(text.attrib["y"]) <= height
    for box in root.iter(f"{_SVG}rect"):
        if box.attrib["width"] != "100%":
            assert float(box.attrib["x"]) + float(box.attrib["width"]) <= width
            assert float(box.attrib["y"]) + float(box.attrib["height"]) <= height


@pytest.mark.parametrize("size", _SIZES[1:3])
def test_no_box_of_a_node_covers_another(size: int) -> None:
    root = ElementTree.fromstring(svg(topology(size)))  # noqa: S314 - ours
    corners = [
        (float(box.attrib["x"]), float(box.attrib["y"]))
        for box in root.iter(f"{_SVG}rect")
        if box.attrib["width"] == "190"
    ]
    assert len(corners) == size
    for number, (x, y) in enumerate(corners):
        assert all(abs(x - other) >= 190 or abs(y - below) >= 86 for other, below in corners[number + 1 :])


def test_of_300_nodes_each_has_a_mark_with_its_name_and_state() -> None:
    titles = {each.text for each in ElementTree.fromstring(svg(topology(300))).iter(f"{_SVG}title")}  # noqa: S314
    assert len(titles) == 301
    assert {"h3 10.5.3.0/24 10.99.0.13 no answer", "h299 10.6.43.0/24 10.99.1.99 healthy"} <= titles


def test_colour_is_never_alone() -> None:
    words = "".join(ElementTree.fromstring(svg(topology(3))).itertext())  # noqa: S314 - ours
    for said in ("✗ silent", "no answer", "broken", "healthy", "direct", "tunnelled"):
        assert said in words


@pytest.mark.parametrize("size", _SIZES)
def test_graphviz_accepts_the_graph(size: int) -> None:
    if shutil.which("dot") is None:
        pytest.skip("dot (Graphviz) is not installed")
    subprocess.run(["dot", "-Tsvg"], input=dot(topology(size)), check=True, text=True, capture_output=True)


@pytest.mark.parametrize("size", _SIZES)
def test_every_line_of_mermaid_is_one_of_its_statements(size: int) -> None:
    text = r'"[^"\n]*"'
    statement = (
        rf"flowchart LR|subgraph u\d+\[{text}\]|end|n\d+\[{text}\]:::[a-z]+|n\d+ (---|-\.-)(\|{text}\|)? n\d+"
        r"|linkStyle \d+ stroke:#[0-9a-f]{6}|classDef [a-z]+ stroke:#[0-9a-f]{6},stroke-width:2px"
    )
    assert [line for line in mermaid(topology(size)).splitlines() if not re.fullmatch(statement, line.strip())] == []


def test_names_of_nodes_are_text_in_every_format() -> None:
    evil = '<b>"h1\\"&;\x07'
    lease = lease_pb2.Lease(name="a", node=evil, backend_type="vxlan", subnets=[lease_pb2.Subnet(cidr="10.5.1.0/24")])
    made = read_topology(lease_pb2.ListLeasesResponse(leases=[lease, samples.vxlan_lease(2)]), [], {}, {})
    ElementTree.fromstring(svg(made))  # noqa: S314 - ours
    assert '\\"h1' in dot(made)
    assert '"#60;b#62;#34;h1' in mermaid(made)


def test_a_route_by_the_underlays_interface_is_direct_and_what_is_worse_of_two_directions_counts() -> None:
    leases = lease_pb2.ListLeasesResponse(leases=[samples.vxlan_lease(1), samples.vxlan_lease(2)])
    there, back = samples.peer(2), samples.peer(1)
    for peer in (there, back):
        peer.objects.clear()
        peer.objects.add(kind="route", gateway=peer.public_addresses[0], device="eth0", programmed=True)
    back.state = pb.PEER_STATE_FAILED
    for other, health, remark in (([], Overall.HEALTHY, "0.21 ms"), ([back], Overall.BROKEN, "failed")):
        (link,) = read_topology(leases, [], {}, {"h1": ("eth0", [there]), "h2": ("eth0", other)}).links
        assert (link.direct, link.health, link.remark) == (True, health, remark)


def test_a_link_says_what_its_path_carries_beside_what_it_should_whichever_end_has_found_out() -> None:
    leases = lease_pb2.ListLeasesResponse(leases=[samples.vxlan_lease(1), samples.vxlan_lease(2)])
    ends = {"h1": ("eth0", [samples.peer(2)]), "h2": ("eth0", [samples.peer(1)])}
    for name, (_, (peer,)) in ends.items():
        for probe in peer.probes:
            probe.mtu, probe.largest_packet, probe.route_mtu = 1450, 1450, 0
        (link,) = read_topology(leases, [], {}, ends).links
        assert (link.mtu, link.largest_packet, link.remark) == (1450, 1450, "0.21 ms")
        probe = next(each for each in peer.probes if each.layer == pb.PROBE_LAYER_OVERLAY)
        probe.largest_packet = probe.route_mtu = 1350
        (link,) = read_topology(leases, [], {}, ends).links
        assert (link.mtu, link.largest_packet, link.remark) == (1450, 1350, "0.21 ms, 1350 of 1450 bytes"), name
        assert link.health is Overall.HEALTHY
        probe.route_mtu, probe.largest_packet = 0, 1450


def test_of_a_dataplane_that_does_not_tell_its_routes_the_backend_says_whether_a_link_is_direct() -> None:
    leases = lease_pb2.ListLeasesResponse(leases=[samples.vxlan_lease(1), samples.vxlan_lease(2)])
    peer = samples.peer(2)
    for each in peer.objects:  # of 0.2
        each.ClearField("kind")
    for backend in ("host-gw", "vxlan"):
        leases.leases[0].backend_type = backend
        (link,) = read_topology(leases, [], {}, {"h1": ("eth0", [peer])}).links
        assert link.direct is (backend == "host-gw")


def test_what_only_the_lease_service_knows_is_drawn_too() -> None:
    leases = lease_pb2.ListLeasesResponse(leases=[samples.vxlan_lease(number) for number in (1, 2, 3)])
    leases.leases[2].backend_type = ""
    reserved = leases.leases.add(name="10.5.9.0-24", reserved=True)
    reserved.subnets.add(cidr="10.5.9.0/24")
    known = [lease_pb2.Node(name="h1", connected=True, behind=0), lease_pb2.Node(name="h2", connected=False)]
    made: Topology = read_topology(leases, known, {}, {})
    assert [(node.name, node.health) for node in made.nodes] == [
        ("h1", Overall.HEALTHY),
        ("h2", Overall.AWAY),
        ("h3", Overall.UNKNOWN),
    ]
    assert {link.health for link in made.links} == {Overall.UNKNOWN}
