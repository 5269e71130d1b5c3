"""What a node lacks for the time to come: a lease that is renewed, and the time."""

import asyncio

import pytest

from flannelette.services.core.errors import Unavailable
from flannelette.services.dataplane.node.lease_renewer import own_findings
from tests.services.renewer import DAY, FakeService, Scene, play
from tests.virtual_time import now


def test_a_lease_that_is_not_renewed_is_told_of_until_it_is() -> None:
    def found(scene: Scene, later: float = 0.0) -> list[str]:
        return [
            each.problem
            for each in own_findings(scene.renewer.lease, scene.renewer.unrenewed, 0.0, now() + later)
            if each.is_soon
        ]

    async def script(scene: Scene) -> None:
        assert not found(scene)
        scene.service.faults = [Unavailable("etcd at 192.0.2.1:2379 does not answer in time")] * 3
        await asyncio.sleep(DAY - 3600 + 30)
        assert not found(scene), "one failure may be a restart of the lease service"
        await asyncio.sleep(60)
        (told,) = found(scene)
        assert told.startswith("The lease 10.5.27.0-24 of this node runs out at ")
        assert found(scene, DAY)[0].startswith("The lease 10.5.27.0-24 of this node ran out at ")
        (finding,) = own_findings(scene.renewer.lease, scene.renewer.unrenewed, 0.0, now())
        assert "etcd at 192.0.2.1:2379 does not answer in time" in finding.cause
        await asyncio.sleep(120)
        assert not found(scene)

    play(script, FakeService())


@pytest.mark.parametrize(
    ("ahead", "said"), [(0, ""), (9, ""), (-9, ""), (61, "61 s behind that"), (-3700, "3700 s ahead of that")]
)
def test_a_clock_that_nobody_sets_is_told_of(ahead: float, said: str) -> None:
    async def script(scene: Scene) -> None:
        found = [each.problem for each in own_findings(scene.renewer.lease, scene.renewer.unrenewed, ahead, now())]
        assert len(found) == bool(said)
        assert said in "".join(found)

    play(script, FakeService())
