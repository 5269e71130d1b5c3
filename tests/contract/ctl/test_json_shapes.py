"""What `-o json` promises: keys and types (tests/golden/ctl/json-shapes.json), numbers as numbers, one style."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flannelette.dataplane.v1 import dataplane_pb2
from flannelette.masq.v1 import masq_pb2
from tests.ctl import nodes as ctl_nodes
from tests.ctl import samples
from tests.ctl.fakes import FakeNode
from tests.ctl.process import run
from tests.paths import ROOT

GOLDEN = ROOT / "tests/golden/ctl/json-shapes.json"
COMMANDS = (
    "status",
    "nodes",
    "peers",
    "leases",
    "rules",
    "reservations",
    "quarantine",
    "doctor",
    "explain pod 198.51.100.9",
    "diff",
    "resync",
    "topology",
    "top",
    "events",
    "wait --converged --timeout=0",
    "addresses",
)
_ENUMS = ("state", "health", "weight", "kind", "layer", "checksum_offload", "verdict", "outcome", "sign")
"""Keys of what is one of a few words."""
_WORDS = ("store", "objects")
"""Parents whose `kind` is a text: a store's, an object's of the kernel."""


def shape(value: Any) -> Any:
    """The types of a document; those of all elements of a list together."""
    if isinstance(value, dict):
        return {key: shape(each) for key, each in value.items()}
    if isinstance(value, list):
        found: Any = None
        for each in value:
            found = _joined(found, shape(each))
        return [found]
    return type(value).__name__


def _joined(one: Any, other: Any) -> Any:
    if isinstance(one, dict) and isinstance(other, dict):
        return {key: _joined(one.get(key), other.get(key)) for key in {**one, **other}}
    return other if one in (None, [None]) else one


def texts(value: Any, key: str = "", parent: str = "") -> Iterator[tuple[str, str, str]]:
    """Every text with its key and the key above it."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield from texts(each, name, key)
    elif isinstance(value, list):
        for each in value:
            yield from texts(each, key, parent)
    elif isinstance(value, str):
        yield parent, key, value


@pytest.fixture
async def documents(node: FakeNode) -> dict[str, list[Any]]:
    """What each command prints about a node that tells of everything."""
    lease, dataplane, masq = (each.replies.by_method for each in (node.lease, node.dataplane, node.masq))
    lease |= {"ListQuarantine": samples.quarantine(), "ListNodes": ctl_nodes.varied_nodes()}
    status, devices = samples.masq_status(), samples.dataplane_status()
    status.status.ready = False
    status.status.reasons.append("a rule cannot be set")
    for device in devices.status.devices:
        device.received_bytes = device.sent_bytes = 10
    devices.status.probes.round_trip_microseconds, devices.status.probes.loss = 210, 0.25
    dataplane["GetStatus"], masq["GetStatus"] = devices, status
    dataplane["ResyncKernel"] = dataplane_pb2.ResyncKernelResponse(commands=["ip route"], errors=["it is locked"])
    masq["ResyncRules"] = masq_pb2.ResyncRulesResponse(commands=["iptables -A"])
    (node.directory / "subnet.env").write_text("FLANNEL_SUBNET=10.5.64.1/24\n")
    (given := node.directory / "cni/networks/cbr0/10.5.64.2").parent.mkdir(parents=True)
    given.write_text("c1\r\neth0")
    found = {}
    for command in COMMANDS:
        ran = await run(
            node.directory,
            *command.split(),
            "-o",
            "json",
            FLANNELD_SUBNET_FILE=f"{node.directory}/subnet.env",
            FLANNELD_CNI_STATE_DIR=f"{node.directory}/cni",
        )
        many = command == "events"
        found[command.split()[0]] = [json.loads(line) for line in ran.out.splitlines()] if many else [ran.json]
    return found


async def test_keys_and_types_are_those_that_are_promised(documents: dict[str, list[Any]], tmp_path: Path) -> None:
    """A key may be added: then the golden file gets it. None is removed, and no type changes, before a release that
    says so.
    """
    found = {command: shape(each)[0] for command, each in documents.items()}
    new = tmp_path / "json-shapes.json"
    new.write_text(json.dumps(found, indent=1) + "\n")
    assert json.loads(GOLDEN.read_text()) == found, f"cp {new} {GOLDEN}"


async def test_numbers_are_numbers_and_enums_have_one_style(documents: dict[str, list[Any]]) -> None:
    said = [(command, *each) for command, some in documents.items() for each in texts(some)]
    names = ("text", "mac", "version", "node", "name", "cursor", "position", "what", "missed")
    assert not [each for each in said if each[3].isdigit() and each[2] not in names]
    words = [each for each in said if each[2] in _ENUMS and each[1] not in _WORDS]
    assert len({each[2] for each in words}) >= 5, words
    assert not [each for each in words if not re.fullmatch(r"[A-Z][A-Z0-9_]*", each[3])]
    assert not [each for each in words if re.match(r"(PEER_STATE|EVENT_KIND|PROBE_LAYER|ANSWERING|WEIGHT)_", each[3])]
