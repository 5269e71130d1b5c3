"""ipsec beside a real flanneld, taken over from it and given back to it."""

import asyncio
from typing import Final

import pytest

from tests.charon.real import require_charon
from tests.charon.traffic import LARGEST, PSK, measured
from tests.flannel.real import require_flanneld
from tests.flannel.three_nodes import three_nodes
from tests.patience import FACTOR

pytestmark = pytest.mark.modules("esp4", "dummy")

OUTAGE: Final = 0.15 * FACTOR
"""Seconds. A flanneld's charon sends by a new tunnel before the charon that has asked for it can receive by it."""


async def test_a_flanneld_is_a_peer_is_taken_over_from_and_given_back_to() -> None:
    require_charon()
    require_flanneld()
    sizes = {4: LARGEST}
    async with three_nodes() as scene:
        await scene.choose({"Type": "ipsec", "PSK": PSK}, ipv6=False, flanneld=True)
        assert scene.mtu == LARGEST
        await scene.reach_each_other(sizes)
        first = scene.nodes[0]

        async def replace_charon() -> None:
            scene.charons[first.name].kill()
            await first.dataplane.until(ready=False)
            await scene.charons[first.name].start()
            await first.dataplane.until(peers=2)
            await asyncio.sleep(2)

        for do, name in (
            (replace_charon, "charon replaced beside a flanneld"),
            (scene.take_over, "taken over from a flanneld that was killed"),
            (scene.give_back, "given back to flanneld"),
        ):
            with scene.stream(sizes) as stream:
                outage = await measured(stream, do, name)
            assert outage <= OUTAGE, name
            await scene.reach_each_other(sizes)
