"""The kinds of events of each service: those of its protocol, by name and number."""

from enum import Enum
from typing import Any

import pytest

from flannelette.dataplane.v1 import dataplane_pb2
from flannelette.lease.v1 import lease_pb2
from flannelette.masq.v1 import masq_pb2
from flannelette.services.dataplane.events import NodeEventKind
from flannelette.services.lease.events import LeaseEventKind
from flannelette.services.masq.reconcile.journal import MasqEventKind


@pytest.mark.parametrize(
    ("kinds", "proto"),
    [
        (LeaseEventKind, lease_pb2.EventKind),
        (NodeEventKind, dataplane_pb2.EventKind),
        (MasqEventKind, masq_pb2.EventKind),
    ],
    ids=["lease", "dataplane", "masq"],
)
def test_kinds_are_those_of_the_proto(kinds: type[Enum], proto: Any) -> None:
    values = proto.DESCRIPTOR.values
    assert [(f"EVENT_KIND_{kind.name}", kind.value) for kind in kinds] == [(v.name, v.number) for v in values[1:]]
