"""The renewal margin, the VNI and the patterns of interfaces mean what flanneld's do.

Regression tests of hole 16.
"""

import asyncio

import pytest

from flannelette.services.core.errors import Misconfigured
from tests.examples.underlay_choice import choose, has, link
from tests.services.renewer import DAY, FakeService, Scene, play


@pytest.mark.parametrize(
    ("margin", "life", "due"),
    [
        (60, DAY, 82_800),
        (721, DAY, 43_140),
        (1_439, DAY, 60),
        (60, 3_600, 1_800),
        (60, 3_700, 100),
        (60, 3_610, 1_805),
        (1_439, 10, 5),
    ],
)
def test_a_lease_is_renewed_at_the_margin_given_or_halfway_where_it_is_not_longer_than_that(
    margin: int, life: float, due: float
) -> None:
    async def script(scene: Scene) -> None:
        await asyncio.sleep(due + 1)
        assert [round(time) for time in scene.service.renewed] == [due]

    play(script, FakeService(seconds=life), margin=margin * 60.0)


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        (r"^eth[[:digit:]]$", "eth0"),
        (r"\Qeth0.7\E", "eth0.7"),
        (r"^\pL+0$", "eth0"),
        (r"eth0\z", "eth0"),
        (r"(?i)ETH(?-i)0", "eth0"),
        (r"(?s-i:eth.)", "eth0"),
        (r"(?P<kind>eth)", "eth0"),
        (r"^10\.99", "eth0"),
        (r"^(?:bond|team)", "bond0"),
    ],
)
def test_a_pattern_means_what_it_means_to_flanneld(pattern: str, name: str) -> None:
    hosts = zip(("wlan", name), ("192.0.2.9", "10.99.0.11"), strict=True)
    links = [link(index, each, has(address)) for index, (each, address) in enumerate(hosts, 1)]
    assert choose(regex=[pattern], interfaces=links).name == name


@pytest.mark.parametrize("pattern", ["eth(?!1)", "(?<=e)th", r"(e)\1", r"eth0\Z", "e++", "(?>eth)", "x{1001}", "("])
def test_a_pattern_that_flanneld_refuses_is_refused_and_named(pattern: str) -> None:
    with pytest.raises(Misconfigured, match="is not an RE2 regular expression: ") as caught:
        choose(regex=[pattern])
    assert repr(pattern) in str(caught.value)
