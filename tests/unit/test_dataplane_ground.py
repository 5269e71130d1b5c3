"""What the dataplane stands on, and whose fault it is that it finds nothing."""

import pytest

from services.core.choices import ChosenAddress
from services.core.errors import Misconfigured, Unavailable
from services.dataplane.ground import find_ground
from services.dataplane.interfaces import Interface
from services.dataplane.settings import DataplaneSettings
from tests.dataplane_examples import FakeKernel
from tests.lease_examples import SMALL

V4, V6 = ChosenAddress(4, "10.99.0.77", "the IPv4 annotation"), ChosenAddress(6, "fd00::77", "the IPv6 annotation")


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
    monkeypatch: pytest.MonkeyPatch, chosen: tuple[ChosenAddress, ...], kind: type[Exception], named: set[str]
) -> None:
    async def interfaces() -> list[Interface]:
        return []

    monkeypatch.setattr("services.dataplane.ground.links.interfaces", interfaces)
    with pytest.raises(kind) as caught:
        await find_ground(SMALL, DataplaneSettings(), FakeKernel(), "n1", chosen)  # type: ignore[arg-type]  # is asked for routes
    assert {family for family in ("IPv4", "IPv6") if f"the {family} annotation is" in str(caught.value)} == named
