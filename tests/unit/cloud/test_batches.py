"""A plan is carried out in batches: what fails alone, what stops the others, and what is tried one by one."""

from collections.abc import Mapping, Sequence
from ipaddress import ip_network

import pytest

from flannelette.services.cloud.routes import Change, CloudError, Failure, Route, Verb
from flannelette.services.cloud.writer import BatchResult, CloudEventKind, carry_out
from flannelette.services.core.errors import Unavailable
from tests.clouds.scene import PlayedCloud, Scene


@pytest.mark.parametrize("trouble", [Failure.REFUSED, Failure.CHANGED])
async def test_one_route_that_is_refused_does_not_stop_the_others(trouble: Failure) -> None:
    scene = Scene()
    scene.join(1, 2, 3)
    scene.cloud.faults["10.5.2.0/24"] = CloudError(trouble, "InvalidParameterValue", "no", "write another subnet")
    with pytest.raises(Unavailable, match=r"^1 change of the cloud's routes failed: InvalidParameterValue: no"):
        await scene.sync()
    assert scene.cloud.routes == {"10.5.1.0/24": "eni-1", "10.5.3.0/24": "eni-3"}
    (row,) = (row for row in scene.writer.last.rows if row.problem)
    assert (row.node, row.problem) == ("n2", "InvalidParameterValue: no: write another subnet")


async def test_a_table_that_is_full_takes_no_more_and_gives_what_is_left_over() -> None:
    scene = Scene()
    scene.join(1)
    await scene.sync()
    scene.leave(1)
    scene.join(2, 3)
    scene.cloud.faults["10.5.2.0/24"] = CloudError(Failure.FULL, "RouteLimitExceeded", "full")
    with pytest.raises(Unavailable, match=r"^2 changes of the cloud's routes failed: RouteLimitExceeded"):
        await scene.sync()
    assert scene.cloud.routes == {}, "nothing is created, and what nobody needs is deleted"
    assert {row.node: row.problem for row in scene.writer.last.rows if row.node} == dict.fromkeys(
        ("n2", "n3"), "RouteLimitExceeded: full"
    )


async def test_throttling_ends_the_round_and_the_rest_is_done_in_the_next() -> None:
    scene = Scene()
    scene.join(1, 2, 3)
    scene.cloud.faults["10.5.2.0/24"] = CloudError(Failure.WAIT, "RequestLimitExceeded", "slowly")
    with pytest.raises(CloudError, match=r"^RequestLimitExceeded: slowly$"):
        await scene.sync()
    assert scene.cloud.routes == {"10.5.1.0/24": "eni-1"}
    scene.cloud.faults.clear()
    assert len(await scene.sync()) == 2


@pytest.mark.parametrize(("trouble", "blocked"), [(Failure.REFUSED, False), (Failure.FULL, True)])
async def test_a_batch_that_is_refused_is_tried_one_by_one(trouble: Failure, blocked: bool) -> None:
    scene = Scene()
    scene.cloud.batch = 4
    scene.join(1, 2, 3, 4, 5, 6)
    scene.cloud.faults["10.5.3.0/24"] = CloudError(trouble, "Code", "no")
    with pytest.raises(Unavailable, match="Code: no"):
        await scene.sync()
    assert scene.cloud.calls == ([4, 1, 1, 1] if blocked else [4, 1, 1, 1, 1, 2])
    left = {3, 4, 5, 6} if blocked else {3}
    assert {row.node for row in scene.writer.last.rows if row.problem == "Code: no"} == {f"n{n}" for n in left}
    assert len(scene.cloud.routes) == 6 - len(left)


@pytest.mark.parametrize("trouble", [Failure.DENIED, Failure.WAIT])
async def test_a_batch_that_may_not_be_is_not_tried_one_by_one(trouble: Failure) -> None:
    scene = Scene()
    scene.cloud.batch = 2
    scene.join(1, 2, 3, 4, 5)
    scene.cloud.faults["10.5.3.0/24"] = CloudError(trouble, "Code", "no")
    with pytest.raises(Unavailable, match="Code: no"):
        await scene.sync()
    assert (scene.cloud.calls, len(scene.cloud.routes)) == ([2, 2], 2)


async def test_what_fails_in_a_batch_fails_alone_and_throttling_there_ends_the_round() -> None:
    scene = Scene()
    scene.cloud.batch = 3
    scene.join(1, 2, 3, 4)
    scene.cloud.partial["10.5.2.0/24"] = CloudError(Failure.REFUSED, "InvalidCIDRBlock", "no")
    with pytest.raises(Unavailable, match="InvalidCIDRBlock"):
        await scene.sync()
    assert (scene.cloud.calls, sorted(scene.cloud.routes)) == ([3, 1], ["10.5.1.0/24", "10.5.3.0/24", "10.5.4.0/24"])
    scene.cloud.partial["10.5.2.0/24"] = CloudError(Failure.WAIT, "TaskConflict", "later")
    scene.join(5, 6, 7)
    with pytest.raises(CloudError, match=r"^TaskConflict: later$"):
        await scene.sync()
    assert len(scene.cloud.routes) == 5, "the rest of the batch is there, and no other batch was begun"
    assert scene.told(CloudEventKind.ROUTE)[-1] == "create 10.5.6.0/24 via eni-6 in rtb"


@pytest.mark.parametrize("batch", [1, 3])
async def test_a_route_that_another_program_has_deleted_meanwhile_is_no_error(batch: int) -> None:
    scene = Scene()
    scene.cloud.batch = batch
    scene.join(1, 2)
    await scene.sync()
    scene.leave(1)
    scene.leave(2)
    scene.cloud.meanwhile = {"10.5.1.0/24"}
    assert len(await scene.sync()) == 2
    assert (scene.cloud.routes, scene.writer.last.errors) == ({}, {})
    assert len(scene.told(CloudEventKind.ROUTE)) == 4


class Selective(PlayedCloud):
    """It allows changes in table `b`, and of the target eni-2, alone."""

    def apply(self, changes: Sequence[Change]) -> Mapping[Change, CloudError]:
        self.calls.append(len(changes))
        if any(change.route.table != "b" and change.route.target != "eni-2" for change in changes):
            raise CloudError(Failure.DENIED, "UnauthorizedOperation", "no")
        return {}


async def test_what_is_not_allowed_in_one_table_or_of_one_target_stops_no_other() -> None:
    cloud, done = Selective(), BatchResult()
    routes = {(table, n): Route(table, ip_network(f"10.5.{n}.0/24"), "eni-1") for table in "ab" for n in (1, 2)}
    ends = [Route("", ip_network("10.5.1.0/24"), f"eni-{n}") for n in (1, 2)]
    changes = [Change(Verb.CREATE, route) for route in routes.values()]
    await carry_out(cloud, [*changes, *(Change(Verb.FORWARD, end) for end in ends)], done)
    assert [change.text for change in done.made] == [
        "create 10.5.1.0/24 via eni-1 in b",
        "create 10.5.2.0/24 via eni-1 in b",
        "let eni-2 forward packets of pods",
    ]
    assert set(done.errors) == {routes["a", 1].key, routes["a", 2].key, ends[0].key}
    assert len(cloud.calls) == 5, "the second one of table a is not tried"
