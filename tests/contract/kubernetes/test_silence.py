"""The Kubernetes store when the API server says nothing, says it in pieces or too often, or refuses a write."""

import asyncio
import socket
import time
from dataclasses import replace

import pytest

from flannelette.services.core.errors import NotYet, Unavailable
from tests.kubernetes.played_api import PREFIX, ScriptedApi, answer, cut, hang, node, text
from tests.kubernetes.played_store import IMPATIENT, QUICK, REQUEST, USUAL, Open, mac_of
from tests.services.follower import following


async def test_a_watch_that_falls_silent_is_opened_again(api: ScriptedApi, scripted: Open) -> None:
    async with following(scripted()) as seen:
        (await api.watched()).bookmark(8)
        again = await api.watched(2)
        assert again.query["resourceVersion"] == "8"
        again.send("DELETED", node(2, version=9))
        await seen.until(lambda f: "n2" not in f.leases)
        assert [status.connected for status in seen.statuses] == [True]


async def test_silence_is_no_outage_and_costs_no_pause(api: ScriptedApi, scripted: Open) -> None:
    async with following(scripted(replace(QUICK, retry_first=60.0, retry_most=60.0))) as seen:
        await api.watched(3)
        assert api.count("list") == 1
        assert [status.connected for status in seen.statuses] == [True]


async def test_a_server_that_sends_something_now_and_then_is_not_asked_for_more(
    api: ScriptedApi, scripted: Open
) -> None:
    async with following(scripted(replace(QUICK, silence=2.0))):
        watch = await api.watched()
        for version in range(2, 11):
            await asyncio.sleep(0.3)
            watch.send("MODIFIED", node(1, padding=f"a heartbeat, {version}"))
        assert api.count("watch") == 1


async def test_a_server_that_freezes_is_noticed_after_a_silence_and_a_call(api: ScriptedApi, scripted: Open) -> None:
    async with following(scripted(replace(IMPATIENT, silence=0.5))) as seen:
        await seen.until(lambda f: f.connected)
        api.faults["watch"] = [hang] * 1000
        await seen.until(lambda f: not f.connected)
        assert "does not answer in time" in seen.statuses[-1].error
        assert len(seen.leases) == 7
        api.faults["watch"].clear()
        await seen.until(lambda f: f.connected)
        assert seen.snapshots == 1


async def test_a_connection_that_nobody_answers_is_given_up_long_before_a_call(
    api: ScriptedApi, scripted: Open
) -> None:
    """After a boot, when kube-proxy does not translate the address yet: the first one is never answered."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as deaf:
        host, port = deaf.getsockname()
        with socket.create_connection((host, port)), socket.socket() as second:
            second.setblocking(False)
            second.connect_ex((host, port))  # the queue is full: the kernel drops what comes
            api.url = f"http://{host}:{port}"
            timing = replace(QUICK, connect=0.2, call=600.0, page=600.0)
            async with following(scripted(timing)) as seen:
                await seen.until(lambda f: bool(f.statuses))
                assert "does not answer in time" in seen.statuses[-1].error


async def test_opening_a_watch_takes_no_longer_than_any_other_call(api: ScriptedApi, scripted: Open) -> None:
    api.faults["watch"] = [hang]
    async with following(scripted(replace(IMPATIENT, silence=600.0))) as seen:
        await seen.until(lambda f: bool(f.statuses))
        assert "does not answer in time" in seen.statuses[0].error
        await seen.until(lambda f: f.connected)


def test_a_frozen_server_is_noticed_within_half_a_minute() -> None:
    assert USUAL.silence + USUAL.call <= 30


async def test_duplicates_and_heartbeats_are_no_news(api: ScriptedApi, scripted: Open) -> None:
    async with following(scripted()) as seen:
        watch = await api.watched()
        await seen.until(lambda f: f.connected)
        told = len(seen.news)
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
        news = seen.news[told:]
        assert [len(event.changes) for event in news] == [1]


async def test_events_in_pieces_and_in_heaps_are_put_together(api: ScriptedApi, scripted: Open) -> None:
    async with following(scripted()) as seen:
        watch = await api.watched()
        big = node(60, version=60, padding="x" * 1_500_000)
        watch.send("ADDED", big)
        line = b'{"type":"DELETED","object":{"metadata":{"name":"n1","resourceVersion":"61"}}}\n'
        for index in range(len(line)):
            watch.raw(line[index : index + 1])
        watch.raw(b"\n" + line.replace(b"n1", b"n2") + line.replace(b"n1", b"n3"))
        await seen.until(lambda f: "n60" in f.leases and not f.leases.keys() & {"n1", "n2", "n3"})


async def test_a_write_is_tried_again_until_it_works(api: ScriptedApi, scripted: Open) -> None:
    api.faults["patch"] = [answer(500, "no quorum"), answer(409, "conflict"), answer(429, "later"), cut]
    store = scripted(replace(QUICK, patch_total=5.0))
    lease = await store.acquire(REQUEST)
    assert mac_of(lease) == "02:00:00:00:00:77"
    assert api.nodes["n0"]["metadata"]["annotations"][f"{PREFIX}public-ip"] == "192.168.0.77"
    assert api.count("patch") == 5


async def test_a_write_that_never_works_ends_with_the_reason(api: ScriptedApi, scripted: Open) -> None:
    api.faults["patch"] = [answer(500, "no quorum")] * 1000
    with pytest.raises(Unavailable, match="cannot write to the node now: 500 no quorum"):
        await scripted().acquire(REQUEST)
    assert 3 <= api.count("patch") <= 30
    api.faults["patch"] = [hang]
    with pytest.raises(Unavailable, match="does not answer in time"):
        await scripted(replace(IMPATIENT, patch_total=0.01)).acquire(REQUEST)
    api.faults["patch"] = [answer(404, "gone")]
    with pytest.raises(NotYet, match="there is no node n0"):
        await scripted().acquire(REQUEST)


async def test_a_node_that_is_none_is_no_crash(api: ScriptedApi, scripted: Open) -> None:
    for body in ("[]", "null", '{"metadata":{"name":"n0","annotations":7}}', '{"metadata":{"name":""}}', "{", "\xff"):
        api.faults["get"] = [text(body)]
        with pytest.raises(Unavailable, match="the Kubernetes API"):
            await scripted().acquire(REQUEST)


async def test_other_calls_go_on_while_a_listing_is_read(api: ScriptedApi, scripted: Open) -> None:
    api.nodes = {f"n{number}": node(number, padding="y" * 5000) for number in range(1000)}
    store, gaps, last = scripted(QUICK), [0.0], time.monotonic()
    listing = asyncio.create_task(store.relist())
    while not listing.done():
        await asyncio.sleep(0)
        now = time.monotonic()
        gaps.append(now - last)
        last = now
    assert len((await listing).leases) == 1000
    assert len(gaps) > 20, "the loop turned many times while the pages were read"
