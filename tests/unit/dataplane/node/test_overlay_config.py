"""What the dataplane stands on, and whose fault it is that it finds nothing."""

import pytest

from flannelette.services.core.errors import Misconfigured, Unavailable
from flannelette.services.core.leases.table import PublicIpOverride
from flannelette.services.dataplane.backends import BUILT
from flannelette.services.dataplane.links.interfaces import Interface
from flannelette.services.dataplane.node.overlay_config import resolve_config
from flannelette.services.dataplane.settings import DataplaneSettings
from tests.examples.dataplane import FakeKernel
from tests.examples.leases import SMALL

V4, V6 = (
    PublicIpOverride(4, "10.99.0.77", "the IPv4 annotation"),
    PublicIpOverride(6, "fd00::77", "the IPv6 annotation"),
)


@pytest.mark.parametrize(
    ("chosen", "kind", "named"),
    [
        ((), Misconfigured, set()),
        ((V6,), Misconfigured, set()),
        ((V4,), Unavailable, {"IPv4"}),
        ((V4, V6), Unavailable, {"IPv4"}),
    ],
)
async def test_only_what_is_chosen_in_a_family_of_the_network_is_blamed(
    monkeypatch: pytest.MonkeyPatch, chosen: tuple[PublicIpOverride, ...], kind: type[Exception], named: set[str]
) -> None:
    async def interfaces() -> list[Interface]:
        return []

    monkeypatch.setattr("flannelette.services.dataplane.node.overlay_config.links.interfaces", interfaces)
    with pytest.raises(kind) as caught:
        await resolve_config(SMALL, DataplaneSettings(), FakeKernel(), BUILT, "n1", chosen)
    assert {family for family in ("IPv4", "IPv6") if f"the {family} annotation is" in str(caught.value)} == named
