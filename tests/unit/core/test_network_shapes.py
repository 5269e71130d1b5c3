"""Network configurations in the shapes in which users have posted them: read as a real flanneld has read each.

`tests/golden/network_shapes.json` has them, with what flanneld v0.28.9 made of each on etcd, on a host of both
families: it `runs` with these networks, `refuses` it and waits for another, or ends (`exit`).
"""

import json
from typing import Any, Final

import pytest

from flannelette.services.core.errors import InvalidInput
from flannelette.services.core.network import parse_network
from tests.paths import ROOT

SHAPES: Final[dict[str, Any]] = json.loads((ROOT / "tests/golden/network_shapes.json").read_text())
OTHERWISE: Final = {
    "canal-empty-v6": "an IPv6Network that is empty, and that nobody has enabled, is none: flanneld waits",
    "k3s-wireguard-native": "that kernel had no WireGuard, so that flanneld ended; the configuration is good",
    "port-70000": "no UDP port has this number: flanneld takes the lower 16 bits",
}
"""Where ours differs, and why."""


@pytest.mark.parametrize("name", SHAPES)
def test_a_network_configuration_is_read_as_a_real_flanneld_reads_it(name: str) -> None:
    shape = SHAPES[name]
    try:
        network = parse_network(shape["text"])
    except InvalidInput:
        read = None
    else:
        read = sorted(str(each.cidr) for each in network.families)
    runs = shape["flanneld"] == "runs"
    if name in OTHERWISE:
        assert (read is not None) is not runs
    elif runs:
        assert read == sorted(shape["networks"])
    else:
        assert read is None
