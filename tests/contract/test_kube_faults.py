"""The Kubernetes store against an API server that fails in every way that a real one does, on demand."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

import pytest

from services.core.errors import NotYet, Unavailable
from services.core.lease import Lease, LeaseRequest, VxlanData, Wish
from services.lease.store import Changed, Snapshot
from services.lease.stores.kube import KubeSettings, KubeStore
from services.lease.stores.kube.records import Timing
from tests.contract.follower import Follower, following
from tests.kube_script import PREFIX, Fault, ScriptedApi, answer, cut, hang, node, scripted_api, status, text

QUICK = Timing(
    call=10.0,
    page=10.0,
    silence=0.2,
    retry_first=0.02,
    retry_most=0.1,
    patch_pause=0.02,
    patch_total=0.3,
    pod_cidr=0.2,
)
IMPATIENT = replace(QUICK, call=0.2, page=0.2)
"""For whom there is no answer."""
REQUEST = LeaseRequest("n0", "vxlan", (Wish(ip_address("192.168.0.77"), VxlanData(1, "02:00:00:00:00:77")),))

Open = Callable[..., KubeStore]


@pytest.fixture
async def api() -> AsyncIterator[ScriptedApi]:
    async with scripted_api(*map(node, range(7))) as scripted:
        yield scripted


@pytest.fixture
async def opened(api: ScriptedApi, tmp_path: Path) -> AsyncIterator[Open]:
    path = tmp_path / "net-conf.json"
    path.write_text('{"Network":"10.0.0.0/8","Backend":{"Type":"vxlan"}}')
    async with AsyncExitStack() as stack:

        def open_store(timing: Timing = QUICK) -> KubeStore:
            store = KubeStore(KubeSettings(network_file=path), timing=timing, access=api.access)
            stack.push_async_callback(store.close)
            return store

        yield open_store


def mac_of(lease: Lease) -> str:
    data = lease.subnets[0].data
    assert isinstance(data, VxlanData)
    return data.mac


def is_version(name: str, version: int) -> Callable[[Follower], bool]:
    return lambda f: name in f.leases and mac_of(f.leases[name]) == f"02:00:00:00:{version:02x}:01"


async def test_a_listing_comes_in_pages_and_the_watch_begins_where_it_ended(api: ScriptedApi, opened: Open) -> None:
    api.page, api.version = 3, 41
    async with following(opened()) as seen:
        assert isinstance(seen.events[0], Snapshot)
        assert sorted(seen.leases) == [f"n{number}" for number in range(7)]
        watch = await api.watched()
        assert watch.query["resourceVersion"] == "41"
        assert watch.query["allowWatchBookmarks"] == "true"
    assert [query.get("continue") for kind, query in api.requests if kind != "watch"] == [None, "0-3", "0-6"]
    assert api.requests[0][1]["limit"] == "500"


async def test_a_continuation_that_expired_starts_the_listing_anew(api: ScriptedApi, opened: Open) -> None:
    api.page = 3
    api.faults["continue"] = [answer(410, "The provided continue parameter is too old", reason="Expired")]
    async with following(opened()) as seen:
        await seen.until(lambda f: len(f.leases) == 7)
        assert api.count("list") == 2
        assert all(status.connected for status in seen.statuses)
    api.faults["continue"] = [answer(410)]
    assert len((await opened().relist()).leases) == 7


async def test_a_second_listing_that_never_completes_is_given_up(api: ScriptedApi, opened: Open) -> None:
    api.page = 3
    api.faults["continue"] = [answer(410)] * 10
    with pytest.raises(Unavailable, match="forgets a listing"):
        await opened().relist()


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
    api: ScriptedApi, opened: Open, kind: str, fault: str
) -> None:
    api.page = 3
    made, sentence = BROKEN[fault]
    if kind == "watch" and fault in ("no list", "no version", "a nameless node"):
        made, sentence = text('{"type":"NEWS","object":{"metadata":{"resourceVersion":"1"}}}\n'), "type 'NEWS'"
    api.faults[kind] = [made] * 2
    async with following(opened(IMPATIENT if made is hang else QUICK)) as seen:
        await seen.until(lambda f: not api.faults[kind] and len(f.leases) == 7 and f.connected)
        assert any(sentence in status.error for status in seen.statuses if not status.connected), seen.statuses
        assert seen.snapshots == 1
        assert all(not event.changes for event in seen.events if isinstance(event, Changed))


async def test_the_server_is_asked_again_no_sooner_than_it_wants(api: ScriptedApi, opened: Open) -> None:
    api.faults["list"] = [answer(429, "slow down", Retry_After="1")]
    started = time.monotonic()
    async with following(opened()) as seen:
        await seen.until(lambda f: bool(f.leases))
        assert time.monotonic() - started >= 1.0
        assert "429 slow down" in seen.statuses[0].error


async def test_an_outage_is_no_storm(api: ScriptedApi, opened: Open) -> None:
    api.faults["list"] = [answer(500)] * 10_000
    async with following(opened(replace(QUICK, retry_first=0.05, retry_most=0.2))) as seen:
        await asyncio.sleep(1.5)
        assert 2 <= api.count("list") <= 20
        assert len(seen.statuses) == 1, "told once"


async def test_a_place_that_expired_is_listed_anew_and_only_the_difference_is_news(
    api: ScriptedApi, opened: Open
) -> None:
    async with following(opened()) as seen:
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
    api: ScriptedApi, opened: Open, code: int
) -> None:
    async with following(opened(replace(QUICK, retry_first=0.001))) as seen:
        watch = await api.watched()
        watch.bookmark(5)
        await asyncio.sleep(0.05)
        watch.send("ERROR", status(code, "please try again"))
        again = await api.watched(2)
        assert again.query["resourceVersion"] == "5"
        assert seen.snapshots == 1


async def test_bookmarks_move_the_place_on_and_are_no_news(api: ScriptedApi, opened: Open) -> None:
    async with following(opened()) as seen:
        watch = await api.watched()
        await seen.until(lambda f: f.connected)
        told = len(seen.events)
        watch.bookmark(77)
        watch.end()
        assert (await api.watched(2)).query["resourceVersion"] == "77"
        assert len(seen.events) == told


async def test_a_watch_that_ends_every_moment_loses_nothing_and_is_no_outage(api: ScriptedApi, opened: Open) -> None:
    async with following(opened()) as seen:
        for turn in range(1, 9):
            watch = await api.watched(turn)
            watch.send("MODIFIED", node(1, version=turn + 1))
            await asyncio.sleep(0.03)
            watch.end()
        await seen.until(is_version("n1", 9))
        assert (await api.watched(9)).query["resourceVersion"] == "9"
        assert api.count("list") == 1
        assert [status.connected for status in seen.statuses] == [True]


async def test_a_watch_that_falls_silent_is_opened_again(api: ScriptedApi, opened: Open) -> None:
    async with following(opened()) as seen:
        (await api.watched()).bookmark(8)
        again = await api.watched(2)
        assert again.query["resourceVersion"] == "8"
        again.send("DELETED", node(2, version=9))
        await seen.until(lambda f: "n2" not in f.leases)
        assert [status.connected for status in seen.statuses] == [True]


async def test_silence_is_no_outage_and_costs_no_pause(api: ScriptedApi, opened: Open) -> None:
    async with following(opened(replace(QUICK, retry_first=60.0, retry_most=60.0))) as seen:
        await api.watched(3)
        assert api.count("list") == 1
        assert [status.connected for status in seen.statuses] == [True]


async def test_a_server_that_sends_something_now_and_then_is_not_asked_for_more(
    api: ScriptedApi, opened: Open
) -> None:
    async with following(opened(replace(QUICK, silence=2.0))):
        watch = await api.watched()
        for version in range(2, 7):
            await asyncio.sleep(0.5)
            watch.send("MODIFIED", node(1, padding=f"a heartbeat, {version}"))
        assert api.count("watch") == 1


async def test_a_server_that_freezes_is_noticed_after_a_silence_and_a_call(api: ScriptedApi, opened: Open) -> None:
    async with following(opened(replace(IMPATIENT, silence=0.5))) as seen:
        await seen.until(lambda f: f.connected)
        api.faults["watch"] = [hang] * 1000
        await seen.until(lambda f: not f.connected)
        assert "does not answer in time" in seen.statuses[-1].error
        assert len(seen.leases) == 7
        api.faults["watch"].clear()
        await seen.until(lambda f: f.connected)
        assert seen.snapshots == 1


async def test_opening_a_watch_takes_no_longer_than_any_other_call(api: ScriptedApi, opened: Open) -> None:
    api.faults["watch"] = [hang]
    async with following(opened(replace(IMPATIENT, silence=600.0))) as seen:
        await seen.until(lambda f: bool(f.statuses))
        assert "does not answer in time" in seen.statuses[0].error
        await seen.until(lambda f: f.connected)


def test_a_frozen_server_is_noticed_within_half_a_minute() -> None:
    assert Timing().silence + Timing().call <= 30


async def test_duplicates_and_heartbeats_are_no_news(api: ScriptedApi, opened: Open) -> None:
    async with following(opened()) as seen:
        watch = await api.watched()
        await seen.until(lambda f: f.connected)
        told = len(seen.events)
        for _ in range(3):
            watch.send("ADDED", node(1))
        watch.send("MODIFIED", node(1, padding="a heartbeat"))
        unmanaged = node(50)
        del unmanaged["metadata"]["annotations"]
        watch.send("ADDED", unmanaged)
        watch.send("DELETED", unmanaged)
        watch.send("DELETED", unmanaged)
        watch.send("ADDED", node(51))
        await seen.until(lambda f: "n51" in f.leases)
        news = [event for event in seen.events[told:] if isinstance(event, Changed)]
        assert [len(event.changes) for event in news] == [1]


async def test_events_in_pieces_and_in_heaps_are_put_together(api: ScriptedApi, opened: Open) -> None:
    async with following(opened()) as seen:
        watch = await api.watched()
        big = node(60, version=60, padding="x" * 1_500_000)
        watch.send("ADDED", big)
        line = b'{"type":"DELETED","object":{"metadata":{"name":"n1","resourceVersion":"61"}}}\n'
        for index in range(len(line)):
            watch.raw(line[index : index + 1])
        watch.raw(b"\n" + line.replace(b"n1", b"n2") + line.replace(b"n1", b"n3"))
        await seen.until(lambda f: "n60" in f.leases and not f.leases.keys() & {"n1", "n2", "n3"})


async def test_a_write_is_tried_again_until_it_works(api: ScriptedApi, opened: Open) -> None:
    api.faults["patch"] = [answer(500, "no quorum"), answer(409, "conflict"), answer(429, "later"), cut]
    store = opened(replace(QUICK, patch_total=5.0))
    lease = await store.acquire(REQUEST)
    assert mac_of(lease) == "02:00:00:00:00:77"
    assert api.nodes["n0"]["metadata"]["annotations"][f"{PREFIX}public-ip"] == "192.168.0.77"
    assert api.count("patch") == 5


async def test_a_write_that_never_works_ends_with_the_reason(api: ScriptedApi, opened: Open) -> None:
    api.faults["patch"] = [answer(500, "no quorum")] * 1000
    with pytest.raises(Unavailable, match="cannot write to the node now: 500 no quorum"):
        await opened().acquire(REQUEST)
    assert 3 <= api.count("patch") <= 30
    api.faults["patch"] = [hang]
    with pytest.raises(Unavailable, match="does not answer in time"):
        await opened(replace(IMPATIENT, patch_total=0.01)).acquire(REQUEST)
    api.faults["patch"] = [answer(404, "gone")]
    with pytest.raises(NotYet, match="there is no node n0"):
        await opened().acquire(REQUEST)


async def test_a_node_that_is_none_is_no_crash(api: ScriptedApi, opened: Open) -> None:
    for body in ("[]", "null", '{"metadata":{"name":"n0","annotations":7}}', '{"metadata":{"name":""}}', "{", "\xff"):
        api.faults["get"] = [text(body)]
        with pytest.raises(Unavailable, match="the Kubernetes API"):
            await opened().acquire(REQUEST)


async def test_other_calls_go_on_while_a_listing_is_read(api: ScriptedApi, opened: Open) -> None:
    api.nodes = {f"n{number}": node(number, padding="y" * 5000) for number in range(1000)}
    store, gaps, last = opened(QUICK), [0.0], time.monotonic()
    listing = asyncio.create_task(store.relist())
    while not listing.done():
        await asyncio.sleep(0)
        now = time.monotonic()
        gaps.append(now - last)
        last = now
    assert len((await listing).leases) == 1000
    assert len(gaps) > 20, "the loop turned many times while the pages were read"
