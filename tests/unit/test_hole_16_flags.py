"""The renewal margin, the VNI and the patterns of interfaces mean what flanneld's do."""

import asyncio

import pytest

from tests.holder_scene import DAY, FakeService, Scene, play


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
def test_hole_16_a_lease_is_renewed_at_the_margin_given_or_halfway_where_it_is_not_longer_than_that(
    margin: int, life: float, due: float
) -> None:
    async def script(scene: Scene) -> None:
        await asyncio.sleep(due + 1)
        assert [round(time) for time in scene.service.renewed] == [due]

    play(script, FakeService(seconds=life), margin=margin * 60.0)
