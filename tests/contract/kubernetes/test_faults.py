"""The Kubernetes store against an API server whose answers and watches fail as those of a real one do, on demand."""

import asyncio
import time
from dataclasses import replace

import pytest

from flannelette.services.core.errors import Unavailable
from tests.kubernetes.played_api import Fault, ScriptedApi, answer, cut, hang, node, status, text
from tests.kubernetes.played_store import IMPATIENT, QUICK, Open, is_version
from tests.services.follower import following
from tests.waiting import eventually


async def test_a_listing_comes_in_pages_and_the_watch_begins_where_it_ended(api: ScriptedApi, scripted: Open) -> None:
    api.page, api.version = 3, 41
    async with following(scripted()) as seen:
        assert seen.events[0] is seen.listings[0]
        assert sorted(seen.leases) == [f"n{number}" for number in range(7)]
        watch = await api.watched()
        assert watch.query["resourceVersion"] == "41"
        assert watch.query["allowWatchBookmarks"] == "true"
    assert [query.get("continue") for kind, query in api.requests if kind != "watch"] == [None, "0-3", "0-6"]
    assert api.requests[0][1]["limit"] == "50"


async def test_a_continuation_that_expired_starts_the_listing_anew(api: ScriptedApi, scripted: Open) -> None:
    api.page = 3
    api.faults["continue"] = [answer(410, "The provided continue parameter is too old", reason="Expired")]
    async with following(scripted()) as seen:
        await seen.until(lambda f: len(f.leases) == 7)
        assert api.count("list") == 2
        assert all(status.connected for status in seen.statuses)
    api.faults["continue"] = [answer(410)]
    assert len((await scripted().relist()).leases) == 7


async def test_a_second_listing_that_never_completes_is_given_up(api: ScriptedApi, scripted: Open) -> None:
    api.page = 3
    api.faults["continue"] = [answer(410)] * 10
    with pytest.raises(Unavailable, match="forgets a listing"):
        await scripted().relist()


BROKEN: dict[str, tuple[Fault, str]] = {
    "no JSON": (text("<html>a login page</html>"), "is it an API server"),
    "half a page": (text('{"kind":"NodeList","metadata":{"resourceVersion":"5"},"items":[{"meta'), "cannot be read"),
    "no version": (text('{"kind":"NodeList","metadata":{},"items":[]}'), "without resourceVersion"),
    "no list": (text("[]"), "cannot be read"),
    "a nameless node": (text('{"metadata":{"resourceVersion":"5"},"items":[{"metadata":{}}]}'), "without a name"),
    "a cut connection": (cut, "the Kubernetes API at"),
    "no answer": (hang, "does not answer in time"),
    "500": (answer(500, "etcdserver: request timed out"), "500 etcdserver: request timed out"),
    "503": (answer(503, "apiserver not ready"), "503"),
    "404": (answer(404, "the server could not find the requested resource"), "is it an API server"),
}


@pytest.mark.parametrize("kind", ["list", "continue", "watch"])
@pytest.mark.parametrize("fault", BROKEN)
async def test_what_goes_wrong_is_told_and_removes_nothing(
    api: ScriptedApi, scripted: Open, kind: str, fault: str
) -> None:
    api.page = 3
    made, sentence = BROKEN[fault]
    if kind == "watch" and fault in ("no list", "no version", "a nameless node"):
        made, sentence = text('{"type":"NEWS","object":{"metadata":{"resourceVersion":"1"}}}\n'), "type 'NEWS'"
    api.faults[kind] = [made] * 2
    async with following(scripted(IMPATIENT if made is hang else QUICK)) as seen:
        await seen.until(lambda f: not api.faults[kind] and len(f.leases) == 7 and f.connected)
        assert any(sentence in status.error for status in seen.statuses if not status.connected), seen.statuses
        assert seen.snapshots == 1
        assert all(not event.changes for event in seen.news)


async def test_the_server_is_asked_again_no_sooner_than_it_wants(api: ScriptedApi, scripted: Open) -> None:
    api.faults["list"] = [answer(429, "slow down", Retry_After="1")]
    started = time.monotonic()
    async with following(scripted()) as seen:
        await seen.until(lambda f: bool(f.leases))
        assert time.monotonic() - started >= 1.0
        assert "429 slow down" in seen.statuses[0].error


async def test_an_outage_is_no_storm(api: ScriptedApi, scripted: Open) -> None:
    api.faults["list"] = [answer(500)] * 10_000
    begin = time.monotonic()
    async with following(scripted(replace(QUICK, retry_first=0.05, retry_most=0.2))) as seen:
        await eventually(lambda: api.count("list"), lambda asked: asked > 8)
        assert time.monotonic() - begin > 0.3, "8 pauses, of at least half of what they are at most"
        assert len(seen.statuses) == 1, "told once"


async def test_a_place_that_expired_is_listed_anew_and_only_the_difference_is_news(
    api: ScriptedApi, scripted: Open
) -> None:
    async with following(scripted()) as seen:
        watch = await api.watched()
        gone = status(410, "too old resource version: 1 (9)", "Expired")
        del api.nodes["n3"]
        api.nodes["n4"] = node(4, version=9)
        api.version = 9
        watch.send("ERROR", gone)
        await seen.until(is_version("n4", 9))
        assert "n3" not in seen.leases
        assert (await api.watched(2)).query["resourceVersion"] == "9"
        assert seen.snapshots == 2
        api.faults["watch"] = [answer(410, "too old")]
        (await api.watched(2)).end()
        await api.watched(3)
        await seen.until(lambda f: f.snapshots == 3)
        assert all(status.connected for status in seen.statuses)


@pytest.mark.parametrize("code", [429, 500, 504])
async def test_an_error_that_passes_is_asked_again_from_the_same_place(
    api: ScriptedApi, scripted: Open, code: int
) -> None:
    async with following(scripted(replace(QUICK, retry_first=0.001))) as seen:
        watch = await api.watched()
        watch.bookmark(5)
        await asyncio.sleep(0.05)
        watch.send("ERROR", status(code, "please try again"))
        again = await api.watched(2)
        assert again.query["resourceVersion"] == "5"
        assert seen.snapshots == 1


async def test_bookmarks_move_the_place_on_and_are_no_news(api: ScriptedApi, scripted: Open) -> None:
    async with following(scripted()) as seen:
        watch = await api.watched()
        await seen.until(lambda f: f.connected)
        told = len(seen.events)
        watch.bookmark(77)
        watch.end()
        assert (await api.watched(2)).query["resourceVersion"] == "77"
        assert len(seen.events) == told


async def test_a_watch_that_ends_every_moment_loses_nothing_and_is_no_outage(
    api: ScriptedApi, scripted: Open
) -> None:
    async with following(scripted()) as seen:
        for turn in range(1, 9):
            watch = await api.watched(turn)
            watch.send("MODIFIED", node(1, version=turn + 1))
            await asyncio.sleep(0.03)
            watch.end()
        await seen.until(is_version("n1", 9))
        assert (await api.watched(9)).query["resourceVersion"] == "9"
        assert api.count("list") == 1
        assert [status.connected for status in seen.statuses] == [True]
