"""The path of a packet, merged from what two dataplanes and their masq say, and how it is shown."""

import json

import pytest
import yaml

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from flannelette.masq.v1 import masq_pb2
from flannelette.services.ctl.commands.trace import paths_text
from flannelette.services.ctl.connect.call import CallFailed
from flannelette.services.ctl.packet_path import NodeTrace, PacketPath, Verdict, path_of
from flannelette.services.ctl.screen import screen

OK, BROKEN, UNKNOWN = pb.TRACE_VERDICT_PASSES, pb.TRACE_VERDICT_BROKEN, pb.TRACE_VERDICT_UNKNOWN
SENDER, RECEIVER = pb.TRACE_SIDE_SENDER, pb.TRACE_SIDE_RECEIVER
ROUTE = pb.TraceStep(
    kind="route", text="10.5.53.0/24 via 10.5.53.0 dev flannel.1", verdict=OK, owner="flannelette", side=SENDER
)
MAC = {"device MAC": "06:0c"}
FDB = pb.TraceStep(kind="fdb", text="06:0c", verdict=UNKNOWN, side=SENDER, reason="?", expects=MAC)
INPUT = pb.TraceStep(
    kind="firewall",
    verdict=UNKNOWN,
    side=RECEIVER,
    packet=pb.FirewallPacket(source="10.99.0.11", protocol=17, port=8472, hook="input"),
)
FORWARD = pb.TraceStep(
    kind="firewall", verdict=UNKNOWN, side=SENDER, packet=pb.FirewallPacket(source="10.5.27.2", hook="forward")
)


def told(
    node: str, *steps: pb.TraceStep, nodes: tuple[str, str] = ("n1", "n2"), mac: str = ""
) -> pb.TracePacketResponse:
    return pb.TracePacketResponse(
        source="10.5.27.2",
        destination="10.5.53.2",
        source_node=nodes[0],
        destination_node=nodes[1],
        node=node,
        steps=steps,
        facts={"device MAC": mac} if mac else {},
    )


def whole(*answers: NodeTrace) -> PacketPath:
    return path_of([NodeTrace(told("n3")), *answers])


def test_two_halves_are_a_whole_path() -> None:
    path = whole(NodeTrace(told("n2", INPUT), {0: masq_pb2.ExplainResponse()}), NodeTrace(told("n1", ROUTE)))
    assert [(step.node, step.kind, step.verdict) for step in path.steps] == [
        ("n1", "route", Verdict.PASSES),
        ("n2", "firewall", Verdict.PASSES),
    ]
    assert (path.outcome, path.remarks) == ("arrives", ())
    assert path.steps[1].text == "INPUT UDP port 8472 from 10.99.0.11: nothing drops it"


def test_yaml_has_what_json_has(capsys: pytest.CaptureFixture[str]) -> None:
    path = whole(NodeTrace(told("n1", ROUTE)))
    screen("json").show_json(path.document())
    as_json = capsys.readouterr().out
    screen("yaml").show_json(path.document())
    assert yaml.safe_load(capsys.readouterr().out) == json.loads(as_json)


def test_one_half_says_what_is_not_known() -> None:
    path = whole(NodeTrace(told("n1", ROUTE)))
    assert path.outcome == "nothing is wrong on n1; the rest is not known"
    assert path.remarks == ("How n2 receives is not known: run this there too, or name a --context with n2 in it.",)
    path = whole(NodeTrace(told("n1", ROUTE, nodes=("n1", ""))))
    assert path.outcome == "leaves n1, to an address without a lease"


@pytest.mark.parametrize(
    ("mac", "verdict", "reason"),
    [
        ("06:0c", Verdict.PASSES, ""),
        ("06:0d", Verdict.BROKEN, "The device MAC of n2 is 06:0d, and not 06:0c."),
        ("", Verdict.UNKNOWN, "?"),
    ],
)
def test_the_receiver_is_what_the_sender_expects(mac: str, verdict: Verdict, reason: str) -> None:
    path = whole(NodeTrace(told("n1", FDB)), NodeTrace(told("n2", INPUT, mac=mac)))
    assert (path.steps[0].verdict, path.steps[0].reason) == (verdict, reason)


def test_masq_says_what_drops_the_packet_and_what_becomes_of_its_source() -> None:
    drop = masq_pb2.Finding(problem="Packets are dropped.", cause="The rule `drop`.", cure="nft delete", evidence="x")
    rule = masq_pb2.Rule(text="-j MASQUERADE", present=True)
    cases: list[tuple[masq_pb2.ExplainResponse | CallFailed, Verdict, str, str]] = [
        (masq_pb2.ExplainResponse(findings=[drop]), Verdict.BROKEN, "x", "Packets are dropped. The rule `drop`."),
        (
            masq_pb2.ExplainResponse(rules=[rule], masqueraded=True),
            Verdict.PASSES,
            "FORWARD: nothing drops it; source becomes another: -j MASQUERADE",
            "",
        ),
        (
            masq_pb2.ExplainResponse(rules=[masq_pb2.Rule(text="-j RETURN")]),
            Verdict.BROKEN,
            "FORWARD: nothing drops it; source stays: -j RETURN",
            "The firewall lacks the rule `-j RETURN`.",
        ),
        (CallFailed("no socket"), Verdict.UNKNOWN, "FORWARD from 10.5.27.2", "masq does not tell: no socket"),
    ]
    for said, verdict, text, reason in cases:
        (step,) = whole(NodeTrace(told("n1", FORWARD), {0: said})).steps
        assert (step.verdict, step.text, step.reason) == (verdict, text, reason)


def test_the_first_broken_step_is_marked_at_80_columns() -> None:
    lost = pb.TraceStep(
        kind="device",
        text="flannel.1 DOWN",
        verdict=BROKEN,
        reason="It is down.",
        cure="ip link set up",
        side=RECEIVER,
    )
    there = whole(NodeTrace(told("n1", ROUTE)), NodeTrace(told("n2", lost, lost)))
    back = path_of(
        [NodeTrace(told("n2", nodes=("n2", "n1"))), NodeTrace(told("n2", ROUTE)), NodeTrace(told("n1", INPUT))]
    )
    text = paths_text([there, back], 80, whole_return=False).plain
    assert text == (
        "10.5.27.2 (n1) to 10.5.53.2 (n2): broken on n2 at device\n"
        "n1 sends\n"
        "  ok      route               10.5.53.0/24 via 10.5.53.0 dev flannel.1\n"
        "                              (flannelette)\n"
        "n2 receives\n"
        "->broken  device              flannel.1 DOWN\n"
        "                              It is down.\n"
        "                              ip link set up\n"
        "  broken  device              flannel.1 DOWN\n"
        "                              It is down.\n"
        "                              ip link set up\n"
        "\n"
        "10.5.27.2 (n1) to 10.5.53.2 (n2): arrives, 2 steps"
    )
    assert len(paths_text([there, back], None, whole_return=False).plain.splitlines()) == 6
