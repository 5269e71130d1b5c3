"""The MTUs of docs/compatibility.md are those that the backend computes.

Regression tests of hole 17.
"""

import re
from dataclasses import replace
from typing import Final

import pytest

from flannelette.services.core.family import FAMILIES, Family
from flannelette.services.core.formats.gojson import GoObject
from flannelette.services.dataplane.backends.backend import NodeIdentity
from flannelette.services.dataplane.backends.vxlan import Vxlan
from tests.examples.dataplane import DUAL_UNDERLAY
from tests.paths import ROOT

PAGE: Final = (ROOT / "docs/compatibility.md").read_text()
NETWORKS: Final = {"IPv4": FAMILIES[:1], "IPv6 alone": FAMILIES[1:], "dual stack": FAMILIES}
ROWS: Final = [
    [cell.strip() for cell in row.strip("|").split("|")]
    for row in PAGE.partition("| `FLANNEL_MTU` |\n|---|---|---|---|\n")[2].partition("\n\n")[0].splitlines()
]


def computed(text: str, families: tuple[Family, ...]) -> tuple[list[str], str]:
    """The MTU of each device, and that of pods."""
    option = re.match(r"`MTU` (\d+), ", text)
    backend = Vxlan.parse(GoObject.parse(f'{{"MTU": {option[1]}}}' if option else "{}", "Backend"))
    addresses = tuple(a for a in DUAL_UNDERLAY.addresses if a.version in {f.version for f in families})
    underlay = replace(DUAL_UNDERLAY, addresses=addresses, mtu=1500)
    mtus = []
    for family in FAMILIES:
        device = backend.link(family, underlay, NodeIdentity("h1")) if family in families else None
        mtus.append("" if device is None else str(device.mtu))
    return mtus, str(backend.mtu(underlay))


def test_the_table_has_a_row_for_each_kind_of_network() -> None:
    assert {row[0].rpartition(", ")[2] for row in ROWS} == NETWORKS.keys()
    assert len(ROWS) == 5


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_row_of_the_mtu_table_is_what_the_backend_computes(row: list[str]) -> None:
    text, *devices, pods = row
    assert computed(text, NETWORKS[text.rpartition(", ")[2]]) == (devices, pods.partition(" ")[0])
