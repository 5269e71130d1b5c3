"""What the dataplane loads into charon, what it finds there, and how it notices that charon ends."""

import asyncio
from pathlib import Path

import pytest

from flannelette.services.core.backend_types import Secret
from flannelette.services.dataplane import ike as ours
from flannelette.services.dataplane.ike import CharonActuator, follow_charon
from flannelette.services.dataplane.netlink.object_text import connection_name
from flannelette.services.dataplane.netlink.objects import IkeConnection, IkeKey, KernelObject, Plan, plan
from tests.charon.fake import FakeCharon
from tests.waiting import contains, eventually

PSK = Secret(b"0123456789abcdef" * 6)
KEY = IkeKey("10.99.0.12", PSK)
CONNECTION = IkeConnection("10.99.0.11", "10.99.0.11", "10.5.27.0/24", "10.99.0.12", "10.5.53.0/24", False, "aes-x")
NAME = connection_name(CONNECTION)
WANTED = frozenset[KernelObject]([KEY, CONNECTION])
NOTHING = frozenset[KernelObject]()


async def looked(charon: FakeCharon) -> None:
    """Returns once a follower has done what follows from what is there now: it looks when the one before is done."""
    for _ in range(2):
        before = charon.looks
        charon.tell()
        await eventually(lambda: charon.looks, lambda looks: looks > before)  # noqa: B023 - it is done in this turn


async def test_what_was_loaded_is_found_and_drift_is_a_difference(tmp_path: Path) -> None:
    async with FakeCharon(tmp_path / "vici") as charon:
        with CharonActuator(charon.path) as actuator:
            found = await actuator.contents(())
            assert found.on_devices == NOTHING
            assert await actuator.apply(plan(found.on_devices, WANTED)) == {}
            assert charon.keys["flannelette-10.99.0.12"]["data"] == PSK
            found = await actuator.contents(())
            assert found.on_devices == WANTED
            assert str(found.states[CONNECTION.key]) == "no IKE SA"
            charon.up.add(NAME)
            found = await actuator.contents(())
            assert str(found.states[CONNECTION.key]) == "IKE ESTABLISHED, INSTALLED, 84 bytes in, 168 bytes out"
            assert PSK.decode() not in f"{found} {KEY}"
            for unload in (charon.connections.clear, charon.keys.clear):
                unload()
                todo = plan((await actuator.contents(())).on_devices, WANTED)
                assert len(todo) == 1
                assert await actuator.apply(todo) == {}
            changed = charon.connections[NAME] | {"remote_addrs": [b"10.99.0.99"]}  # type: ignore[operator]
            charon.connections[NAME] = changed
            assert plan((await actuator.contents(())).on_devices, WANTED).put == {CONNECTION}


async def test_another_process_loads_keys_again_and_connections_not(tmp_path: Path) -> None:
    async with FakeCharon(tmp_path / "vici") as charon:
        with CharonActuator(charon.path) as first:
            await first.apply(Plan(WANTED, NOTHING))
        with CharonActuator(charon.path) as second:
            todo = plan((await second.contents(())).on_devices, WANTED)
            assert (set(todo.put), set(todo.delete)) == ({KEY}, set())
            assert await second.apply(todo) == {}
            other = CONNECTION._replace(proposal="aes-y")
            todo = plan((await second.contents(())).on_devices, frozenset([KEY, other]))
            assert (set(todo.put), set(todo.delete)) == ({other}, {CONNECTION}), (
                "another proposal is another connection"
            )
            assert await second.apply(todo) == {}
            assert list(charon.connections) == [connection_name(other)]
            assert await second.apply(plan((await second.contents(())).on_devices, NOTHING)) == {}
            assert charon.connections == charon.keys == {}


async def test_connections_of_others_stay(tmp_path: Path) -> None:
    async with FakeCharon(tmp_path / "vici") as charon:
        charon.connections["users"] = {"local_addrs": ["%any"], "remote_addrs": ["%any"], "children": {}}
        charon.keys["users"] = {}
        with CharonActuator(charon.path) as actuator:
            assert (await actuator.contents(())).on_devices == NOTHING


async def test_a_refusal_has_charons_words_and_a_charon_that_is_away_is_one_failure_of_each(tmp_path: Path) -> None:
    with CharonActuator(tmp_path / "vici") as actuator:
        assert (await actuator.contents(())).on_devices == NOTHING
        assert await actuator.apply(Plan(WANTED, NOTHING)) == dict.fromkeys(WANTED, "charon is away")
        assert await actuator.apply(Plan(NOTHING, WANTED)) == {}, "what is not there is deleted"
        async with FakeCharon(tmp_path / "vici") as charon:
            charon.refused = b"invalid value for: esp_proposals, config discarded"
            failures = await actuator.apply(Plan(WANTED, NOTHING))
            assert failures == {CONNECTION: "charon refuses it: invalid value for: esp_proposals, config discarded"}
        assert (await actuator.contents(())).on_devices == NOTHING


async def test_a_tunnel_that_is_late_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ours, "PATIENCE_SECONDS", 0.0)
    async with FakeCharon(tmp_path / "vici") as charon:
        with CharonActuator(charon.path) as actuator:
            await actuator.apply(Plan(WANTED, NOTHING))
            found = await actuator.contents(())
            assert found.faults[CONNECTION.key].startswith(
                "no IPsec tunnel with 10.99.0.12 (no IKE SA): is its charon"
            )
            charon.answered.add(NAME)
            found = await actuator.contents(())
            assert "have both kernels ESP (`modprobe -a esp4`)" in found.faults[CONNECTION.key]
            charon.up.add(NAME)
            assert (await actuator.contents(())).faults == {}


async def test_the_end_of_charon_and_its_return_are_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ours, "_RETRY_SECONDS", 0.01)
    reports, audits = list[str](), list[int]()
    path = tmp_path / "vici"
    following = asyncio.create_task(follow_charon(path, reports.append, lambda: audits.append(1), lambda up: None))
    await eventually(lambda: reports)
    assert reports[-1].startswith(f"charon (strongSwan) does not answer on {path} (No such file or directory)")
    assert "; cure: start charon" in reports[-1]
    for _ in range(2):
        async with FakeCharon(path):
            audits.clear()
            await eventually(lambda: (reports[-1], audits), lambda told: told[0] == "" and told[1])
        await eventually(lambda: reports[-1])
    following.cancel()


async def test_a_tunnel_that_charon_gave_up_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ours, "_LOOK_SECONDS", 0.02)
    monkeypatch.setattr(ours, "ATTEMPTS_SECONDS", 0.1)
    audits = list[int]()
    async with FakeCharon(tmp_path / "vici") as charon:
        with CharonActuator(charon.path) as actuator:
            await actuator.apply(Plan(WANTED, NOTHING))
        following = asyncio.create_task(
            follow_charon(charon.path, lambda reason: None, lambda: audits.append(1), lambda up: None)
        )
        await eventually(lambda: charon.calls, contains("initiate"))
        charon.up.add(NAME)
        await looked(charon)
        seen = len(audits)
        charon.connections.clear()
        await eventually(lambda: len(audits), lambda count: count > seen)
        following.cancel()


async def test_where_the_peers_tunnel_is_up_the_own_one_is_asked_for_again_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ours, "_ANSWER_SECONDS", 0.05)
    async with FakeCharon(tmp_path / "vici") as charon:
        with CharonActuator(charon.path) as actuator:
            await actuator.apply(Plan(WANTED, NOTHING))
        following = asyncio.create_task(
            follow_charon(charon.path, lambda reason: None, lambda: None, lambda up: None)
        )
        await eventually(lambda: charon.looks)
        charon.answered.add(NAME)
        assert "initiate" not in charon.calls
        charon.tell()
        await eventually(lambda: charon.calls, contains("initiate"))
        await looked(charon)
        assert charon.calls.count("initiate") == 1, "charon has time to negotiate"
        following.cancel()


async def test_when_the_peers_charon_was_replaced_the_own_tunnel_is_made_anew_at_once(tmp_path: Path) -> None:
    async with FakeCharon(tmp_path / "vici") as charon:
        with CharonActuator(charon.path) as actuator:
            await actuator.apply(Plan(WANTED, NOTHING))
        charon.up.add(NAME)
        charon.answered.add(NAME)
        following = asyncio.create_task(
            follow_charon(charon.path, lambda reason: None, lambda: None, lambda up: None)
        )
        await eventually(lambda: charon.looks)
        charon.answered_anew.add(NAME)
        assert "initiate" not in charon.calls
        charon.tell()
        await eventually(lambda: charon.calls, contains("initiate"))
        await looked(charon)
        assert charon.calls.count("initiate") == 1
        following.cancel()


async def test_an_ike_sa_ends_when_its_end_has_made_a_newer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ours, "_LOOK_SECONDS", 0.02)
    async with FakeCharon(tmp_path / "vici") as charon:
        with CharonActuator(charon.path) as actuator:
            await actuator.apply(Plan(WANTED, NOTHING))
        charon.up.add(NAME)
        charon.older = {"3": NAME, "4": "users"}
        following = asyncio.create_task(
            follow_charon(charon.path, lambda reason: None, lambda: None, lambda up: None)
        )
        await eventually(lambda: charon.calls, contains("terminate"))
        await looked(charon)
        assert charon.older == {"4": "users"}
        assert "initiate" not in charon.calls
        following.cancel()
