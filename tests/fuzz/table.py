"""The targets by name, and the corpus of each."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from tests.fuzz.messages import Shaped
from tests.fuzz.targets.calls.cloud import cloud_calls, cloud_leases
from tests.fuzz.targets.calls.lease import lease_calls
from tests.fuzz.targets.calls.node import dataplane_calls, masq_calls
from tests.fuzz.targets.calls.request import shaped_request
from tests.fuzz.targets.command_line import command_line
from tests.fuzz.targets.etcd import etcd
from tests.fuzz.targets.files import files, network
from tests.fuzz.targets.firewalls import iptables_save, legacy_table, nft_netlink
from tests.fuzz.targets.kubernetes import kubernetes
from tests.fuzz.targets.lease_events import lease_events
from tests.fuzz.targets.lease_feed import imports, lease_feed, step_in
from tests.fuzz.targets.netlink import netlink
from tests.fuzz.targets.packets import packets
from tests.fuzz.targets.relay import answer_in, relay
from tests.paths import ROOT

Target: TypeAlias = Callable[[bytes], None]

TARGETS: Final[Mapping[str, Target]] = {
    target.__name__: target
    for target in (
        network,
        etcd,
        kubernetes,
        lease_calls,
        lease_events,
        lease_feed,
        relay,
        dataplane_calls,
        masq_calls,
        cloud_calls,
        cloud_leases,
        imports,
        command_line,
        files,
        netlink,
        packets,
        iptables_save,
        nft_netlink,
        legacy_table,
    )
}
SHAPES: Final[Mapping[str, Shaped]] = {
    "lease_events": step_in,
    "lease_feed": step_in,
    "cloud_leases": step_in,
    "imports": step_in,
    "relay": answer_in,
    "lease_calls": partial(shaped_request, "lease"),
    "dataplane_calls": partial(shaped_request, "dataplane"),
    "masq_calls": partial(shaped_request, "masq"),
    "cloud_calls": partial(shaped_request, "cloud"),
}
"""Of the targets whose cases have a message."""
CORPUS: Final = ROOT / "tests/fuzz/corpus"


def corpus(name: str) -> list[Path]:
    """The files of a target, one case each."""
    return sorted(path for path in (CORPUS / name).iterdir() if path.is_file())
