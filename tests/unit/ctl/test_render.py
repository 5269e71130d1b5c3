"""What the command line prints, as golden text for terminals of 60, 80 and 120 columns and for a pipe."""

import re
from collections.abc import Callable
from datetime import UTC
from pathlib import Path

import pytest
from rich.text import Text

from flannelette.dataplane.v1 import dataplane_pb2
from flannelette.lease.v1 import lease_pb2
from flannelette.masq.v1 import masq_pb2
from flannelette.services.core.conditions import Weight
from flannelette.services.ctl.commands.events import event_text
from flannelette.services.ctl.commands.kernel import plan_text
from flannelette.services.ctl.commands.leases import leases_text
from flannelette.services.ctl.commands.nodes import all_well, nodes_text
from flannelette.services.ctl.commands.peers import peer_text, peers_text
from flannelette.services.ctl.commands.quarantine import quarantine_text
from flannelette.services.ctl.commands.rules import rules_text
from flannelette.services.ctl.commands.status import finding_text, overview_text, status_text
from flannelette.services.ctl.commands.wait import converged_text, pending_text
from flannelette.services.ctl.connect.call import AddressProblem, CallFailed
from flannelette.services.ctl.connect.targets import targets
from flannelette.services.ctl.node_health import Answers, NodeHealth, assess
from flannelette.services.ctl.problems import Problem, doctor_text, merged, problems
from flannelette.services.ctl.screen import Width, lines, screen, table
from flannelette.services.runtime.conditions import older_condition
from tests import paths
from tests.ctl import nodes as ctl_nodes
from tests.ctl import samples as samples
from tests.ctl.clusters import cluster

_GOLDEN = paths.GOLDEN / "ctl"
_WIDTHS: tuple[Width, ...] = (60, 80, 120, None)


def _status(width: Width) -> Text:
    answers = Answers(samples.lease_status(), samples.dataplane_status(), samples.masq_status())
    return status_text(assess(answers, targets(Path("/run/flannelette"), {})), samples.NOW, width)


def _unwell(width: Width) -> Text:
    dataplane = samples.dataplane_status()
    dataplane.status.ready = False
    dataplane.status.reasons.append("1 of 2 peers is not programmed: 10.5.3.0/24 (Network is unreachable)")
    dataplane.status.peers.programmed, dataplane.status.peers.failed = 1, 1
    dataplane.status.unclaimed.append("10.5.77.0/24 via 192.0.2.1 dev eth1 proto static")
    dataplane.status.warnings.append("the backend's option MTU is 9000, but eth0 has 1500, which counts")
    masq = CallFailed("no process listens on /run/flannelette/masq.sock: flannelette-masq was killed; start it again")
    answers = Answers(CallFailed("there is no socket /run/flannelette/lease.sock", missing=True), dataplane, masq)
    return status_text(assess(answers, targets(Path("/run/flannelette"), {})), samples.NOW, width)


def _remembered(width: Width) -> Text:
    dataplane = samples.dataplane_status()
    dataplane.status.ready = dataplane.status.lease_service_connected = dataplane.status.store_connected = False
    dataplane.status.reasons.append("no process listens on /run/flannelette/lease.sock: start flannelette-lease")
    when = "2026-05-03 09:30:00 UTC"
    dataplane.status.reasons.append(f"the leases are those of {when}: no lease service has sent any since the start")
    dataplane.status.remembered_time.CopyFrom(samples.at(hours=-26, minutes=-30))
    dataplane.status.peers.expired = 1
    answers = Answers(
        CallFailed("there is no socket /run/flannelette/lease.sock", missing=True), dataplane, samples.masq_status()
    )
    return status_text(assess(answers, targets(Path("/run/flannelette"), {})), samples.NOW, width)


def _pending() -> NodeHealth:
    """Of a node whose lease service is central, and asked for its status, too."""
    dataplane, lease = samples.dataplane_status(), samples.lease_status("")
    moves = [
        lease_pb2.PendingMove(node=f"h{n}", subnets=[f"10.5.{n}.0/24"], where="a /24 from 10.6.1.0 to 10.6.255.0")
        for n in range(1, 8)
    ]
    lease.pending_moves.extend(moves)
    (subnet,) = moves[0].subnets
    dataplane.status.pending = f"network change pending: h1 would move from {subnet} to {moves[0].where}"
    return assess(Answers(lease, dataplane, samples.masq_status()), targets(Path("/run/flannelette"), {}))


def _imported(width: Width) -> Text:
    """With a lease of another cluster, whose node has the name of an own one."""
    response = samples.leases()
    name = "west/10.6.9.0-24"
    theirs = lease_pb2.Lease(name=name, node="west/h9", backend_type="vxlan", claim_order=7, cluster="west")
    theirs.subnets.add(cidr="10.6.9.0/24", public_address="10.98.0.19").vxlan.mac = "c6:d2:32:6f:8f:99"
    response.leases.append(theirs)
    return leases_text(response, samples.NOW, width)


def _imports(width: Width) -> Text:
    """One cluster that answers, with something refused, and one that is away."""
    lease = samples.lease_status()
    lease.imports.add(name="west", address="192.0.2.7:7070", connected=True, leases=12, refused_count=2)
    away = lease.imports.add(name="north", address="192.0.2.8:7070", connected=False, leases=1, held_removals=1)
    away.error = "no answer at 192.0.2.8:7070"
    answers = Answers(lease, samples.dataplane_status(), samples.masq_status())
    return status_text(assess(answers, targets(Path("/run/flannelette"), {})), samples.NOW, width)


def _doctor_pending(width: Width) -> Text:
    return doctor_text(["h1"], problems(_pending()), width)


def _doctor(width: Width) -> Text:
    found = [
        Problem("masq", "--ip-masq is false here and true on the dataplane, so no rule masquerades.", "start it so"),
        Problem("masq", "The kernel forwards no IPv4 packets.", "sysctl -w net.ipv4.ip_forward=1"),
        Problem("lease", "there is no socket /run/flannelette/lease.sock: start flannelette-lease"),
    ]
    return doctor_text(["h1"], found, width)


def _doctor_cluster(width: Width) -> Text:
    """A problem of two nodes, one of each of two others, and a node that does not answer."""
    common = Problem("masq", "The kernel forwards no IPv4 packets.", "sysctl -w net.ipv4.ip_forward=1")
    rule = "100: from all to 10.5.53.0/24 blackhole"
    blackhole = Problem(
        "dataplane",
        "Packets from pods do not reach h2.",
        "ip rule add priority 99 from all to 10.5.53.0/24 lookup main",
        "ip route get 10.5.53.1 from 10.5.52.1 iif cni0: Invalid argument",
        f"The rule `{rule}` drops these packets.",
        Weight.BROKEN,
        "peer-route",
    )
    there = targets(Path("/run/flannelette"), {})
    missing = CallFailed("there is no directory /run/flannelette: no service has run here", missing=True)
    silent = problems(assess(Answers(missing, missing, missing), there))
    found = merged([("h1", [common, blackhole]), ("h2", []), ("h3", [common]), ("h4", silent)])
    return doctor_text(["h1", "h2", "h3", "h4"], found, width)


def test_a_finding_of_the_lease_service_stands_in_the_status() -> None:
    lease = samples.lease_status()
    lease.findings.add(problem="etcd is slow.", cause="A slow disk.", check="store-slow")
    answers = Answers(lease, samples.dataplane_status(), samples.masq_status())
    text = status_text(assess(answers, targets(Path("/run/flannelette"), {})), samples.NOW, 80).plain
    assert text.startswith("h1 is degraded: 1 problem\n")
    assert "  problem    etcd is slow. A slow disk.\n" in text


def test_a_service_that_does_not_answer_has_a_cure() -> None:
    why = AddressProblem("there is no socket /run/flannelette/masq.sock", "start flannelette-masq, or check --masq")
    missing = CallFailed(why.sentence, why=why)
    killed = CallFailed("no process listens on /run/flannelette/dataplane.sock: flannelette-dataplane was killed")
    node = assess(Answers(missing, killed, missing), targets(Path("/run/flannelette"), {}))
    found = [(each.problem, each.cure) for each in (*problems(node, ["masq"]), *problems(node, ["dataplane"]))]
    assert found == [
        ("there is no socket /run/flannelette/masq.sock", "start flannelette-masq, or check --masq"),
        (str(killed), "start flannelette-dataplane, or name where it is with --dataplane"),
    ]


RENDERED: dict[str, Callable[[Width], Text]] = {
    "status": _status,
    "status-unwell": _unwell,
    "status-remembered": _remembered,
    "status-pending": lambda width: status_text(_pending(), samples.NOW, width),
    "overview": lambda width: overview_text(cluster(5), width),
    "overview-wide": lambda width: overview_text(cluster(5), width, wide=True),
    "leases-wide": lambda width: leases_text(samples.varied_leases(), samples.NOW, width, wide=True),
    "nodes-wide": lambda width: nodes_text(ctl_nodes.varied_nodes().nodes, width, samples.NOW),
    "peers-wide": lambda width: peers_text(samples.peers().peers, width, wide=True),
    "leases": lambda width: leases_text(samples.leases(), samples.NOW, width),
    "leases-imported": _imported,
    "status-imports": _imports,
    "leases-varied": lambda width: leases_text(samples.varied_leases(), samples.NOW, width),
    "nodes": lambda width: nodes_text(ctl_nodes.nodes().nodes, width),
    "nodes-varied": lambda width: nodes_text(ctl_nodes.varied_nodes().nodes, width),
    "nodes-pending": lambda width: pending_text(ctl_nodes.pending(), ctl_nodes.varied_nodes().nodes, width),
    "quarantine": lambda width: quarantine_text(samples.quarantine(), samples.NOW, width),
    "peers": lambda width: peers_text(samples.peers().peers, width),
    "peer": lambda width: peer_text(samples.failed_peer(), width),
    "peer-contested": lambda width: peer_text(samples.contested_peer(), width),
    "events": lambda width: lines(event_text(event, UTC, width) for event in samples.events()),
    "rules": lambda width: rules_text(samples.rules().rules, width),
    "doctor": _doctor,
    "doctor-pending": _doctor_pending,
    "doctor-cluster": _doctor_cluster,
}


@pytest.mark.parametrize("name", RENDERED)
def test_text_is_as_recorded(name: str) -> None:
    """To record anew: delete the file, run the test twice, and read the difference."""
    text = "\n".join(
        f"==== {f'{width} columns' if width else 'a pipe'}\n{RENDERED[name](width).plain}\n" for width in _WIDTHS
    )
    path = _GOLDEN / f"{name}.txt"
    if not path.exists():
        path.write_text(text)
        pytest.fail(f"recorded {path.name}: read it, then run the test again")
    assert text == path.read_text()


@pytest.mark.parametrize("name", [*RENDERED])
@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_is_wider_than_the_terminal_and_none_ends_in_blanks(name: str, width: int) -> None:
    for line in RENDERED[name](width).plain.splitlines():
        assert len(line) <= width
        assert line == line.rstrip()


@pytest.mark.parametrize("width", [20, 60, 80, 120, None])
def test_no_word_is_cut_however_narrow_the_terminal(width: Width) -> None:
    words = leases_text(samples.varied_leases(), samples.NOW, width).plain.replace(",", " ").split()
    assert {"2001:db8:aaaa:bbbb:cccc:dddd:eeee:ffff", "fd00:10:5:c8::/64", "192.168.100.200"} <= set(words)


def test_in_a_pipe_every_row_is_one_line_with_every_column() -> None:
    text = leases_text(samples.varied_leases(), samples.NOW, None).plain
    rows = [line.split("  ") for line in text.splitlines()]
    assert [len([cell for cell in row if cell]) for row in rows] == [6, 6, 6]


def test_a_table_without_rows_is_its_titles() -> None:
    assert table(("A", "B"), [], None).plain == "A  B"


def test_of_300_nodes_each_has_a_row_that_fits_and_those_that_are_unwell_are_counted() -> None:
    shown = overview_text(cluster(300), 80).plain.splitlines()
    assert max(map(len, shown)) <= 80
    assert sum(line.startswith("h") for line in shown) == 300
    assert shown[-1] == "300 nodes: 297 healthy, 2 broken, 1 no answer"


def test_no_leases_and_no_peers_are_said_in_words() -> None:
    empty = samples.leases()
    empty.ClearField("leases")
    assert leases_text(empty, samples.NOW, 80).plain == "0 leases in 10.5.0.0/16 (a /24 per node), vxlan"
    assert peers_text([], 80).plain == "no peers"


def test_what_the_kernel_counts_for_each_peer_is_in_the_table_of_peers() -> None:
    counted = dataplane_pb2.Peer(name="a", node="n2", subnets=["10.5.2.0/24"], received_bytes=33_400, sent_bytes=999)
    other = dataplane_pb2.Peer(name="b", node="n3", subnets=["10.5.3.0/24"])
    rows = [re.split(" {2,}", line) for line in peers_text([counted, other], 80).plain.splitlines()[:3]]
    assert [row[-2:] for row in rows] == [["IN", "OUT"], ["33 kB", "999 B"], ["-", "-"]]
    assert rules_text([], 80).plain == "no rules"


def test_convergence_is_said_in_one_line() -> None:
    assert converged_text(ctl_nodes.converged()).plain == "converged: 3 nodes at e1:9 after 12 ms"
    nobody = lease_pb2.GetConvergenceResponse(cursor="e1:9", converged=False)
    assert pending_text(nobody, [], 80).plain == "not converged: no dataplane is connected to this lease service"
    assert nodes_text([], 80).plain == "no nodes"


def test_nodes_are_well_unless_one_is_known_not_to_be() -> None:
    assert all_well(ctl_nodes.nodes().nodes)
    assert all_well([ctl_nodes.node(6, connected=None, behind=None)])
    assert all_well([ctl_nodes.node(6, behind=None)])  # it reports to a lease service of its own
    for unwell in ({"behind": 1}, {"connected": False, "behind": None}, {"failed": 1}):
        assert not all_well([ctl_nodes.node(1), ctl_nodes.node(2, **unwell)])


def test_a_finding_is_a_sentence_and_its_cure_another() -> None:
    finding = masq_pb2.Finding(problem="The kernel forwards no IPv4 packets.", cure="sysctl -w net.ipv4.ip_forward=1")
    said = "The kernel forwards no IPv4 packets. Cure: sysctl -w net.ipv4.ip_forward=1"
    assert finding_text(older_condition(finding)) == said
    assert finding_text(older_condition(masq_pb2.Finding(problem="firewalld rejects."))) == "firewalld rejects."


def test_a_peer_that_pings_reach_and_nothing_else_is_shown_so() -> None:
    peer = samples.peer(2)
    peer.probes[0].checksum_offload = dataplane_pb2.CHECKSUM_OFFLOAD_BROKEN
    assert "no TCP, no UDP" in peers_text([peer], 80).plain
    assert "up to 1450 bytes, checksum offload is broken: no TCP, no UDP" in peer_text(peer, None).plain


def test_a_plan_can_be_pasted_into_a_shell() -> None:
    done = dataplane_pb2.ResyncKernelResponse(
        commands=["ip route replace 10.5.2.0/24 via 10.5.2.0 dev flannel.1 onlink"], errors=["it did not work"]
    )
    assert plan_text("dataplane", done, dry_run=False).plain.splitlines() == [
        "# dataplane: 1 command run",
        "ip route replace 10.5.2.0/24 via 10.5.2.0 dev flannel.1 onlink",
        "# failed: it did not work",
    ]
    nothing = dataplane_pb2.ResyncKernelResponse()
    assert plan_text("dataplane", nothing, dry_run=True).plain == "# dataplane: nothing to do"


def test_what_could_steer_a_terminal_is_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    screen("table").show(Text("h\x1b[2J\x9b2"))
    assert capsys.readouterr().out == "h\\u001b[2J\\u009b2\n"
