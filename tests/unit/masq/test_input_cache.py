"""What masq remembers over a reboot: when it is in force, what of it, and what ends it."""

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest

from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.leases.table import Removed, Step, StoreStatus, Table, Upserted
from flannelette.services.core.network import parse_network
from flannelette.services.runtime.cache import StateFile, table_records
from tests.examples.masq_firewall import ALL, LEASE, LEASE_KNOWN, MOVED, NETWORK, NETWORK_KNOWN, rules_for
from tests.examples.masq_memory import Scene, played
from tests.examples.state_files import decode, encode

CIDRS = LEASE.cidrs
FULL = ["FLANNEL-FWD", "FLANNEL-POSTRTG"]
KUBE, ETCD = StoreStatus("kube", connected=True), StoreStatus("etcd", connected=True)
OTHER = parse_network('{"Network":"10.6.0.0/16","Backend":{"Type":"vxlan"}}')


def remember(directory: Path, own: Lease | None = LEASE, *, node: str = "n1", store: StoreStatus = KUBE) -> None:
    with StateFile(str(directory), "masq") as file:
        assert file.put(encode("masq", node, own, (), table_records(NETWORK, (), store)))


def test_what_one_life_was_told_is_in_place_in_the_next_one_while_nobody_tells_any(tmp_path: Path) -> None:
    async def first(scene: Scene) -> None:
        await scene.hear(NETWORK_KNOWN, LEASE_KNOWN)

    async def second(scene: Scene) -> None:
        await scene.settle()
        assert scene.names() == []  # a lease service that starts beside us is faster
        await scene.impatient()
        assert scene.firewall.dump() == await rules_for(NETWORK, *CIDRS)
        assert not scene.health.ready
        assert any(reason.startswith("the rules are those of 2") for reason in scene.health.reasons)
        await scene.hear(NETWORK_KNOWN, LEASE_KNOWN)
        assert scene.health.reasons == []
        assert scene.reconciler.repairs == 0
        assert scene.firewall.dump() == await rules_for(NETWORK, *CIDRS)

    played(first, Scene(tmp_path))
    file = tmp_path / "masq.state"
    assert file.stat().st_mode & 0o777 == 0o600
    assert decode("masq", file.read_bytes(), "n1").own == LEASE
    played(second, Scene(tmp_path))


def test_a_lease_service_that_answers_is_not_preceded(tmp_path: Path) -> None:
    remember(tmp_path)

    async def story(scene: Scene) -> None:
        await scene.hear(Step(reset=True, network=OTHER))
        await scene.impatient()
        assert scene.reconciler.inputs.network is OTHER

    played(story, Scene(tmp_path))


def test_a_store_that_is_away_counts_as_nobody(tmp_path: Path) -> None:
    remember(tmp_path)

    async def story(scene: Scene) -> None:
        await scene.impatient()
        await scene.hear(Step(store=StoreStatus("etcd", connected=False, error="no endpoint answers")))
        assert scene.names() == FULL
        assert "the store is away, the rules stay as they are: no endpoint answers" in scene.health.reasons

    played(story, Scene(tmp_path))


def test_the_first_snapshot_decides_and_only_a_complete_one(tmp_path: Path) -> None:
    remember(tmp_path)

    async def story(scene: Scene) -> None:
        await scene.impatient()
        await scene.hear(Step(reset=True, network=OTHER))
        assert scene.reconciler.inputs.network == NETWORK
        await scene.hear(Step(changes=(Upserted(replace(MOVED, subnets=())),), synced=True))
        assert scene.reconciler.inputs.network is OTHER
        assert scene.reconciler.inputs.subnets == ()
        assert await rules_for(OTHER) in scene.firewall.dump()

    played(story, Scene(tmp_path))


def test_a_network_that_is_not_allowed_here_is_neither_taken_nor_remembered(tmp_path: Path) -> None:
    remember(tmp_path)
    before = (tmp_path / "masq.state").read_bytes()

    async def story(scene: Scene) -> None:
        await scene.impatient()
        assert scene.names() == []
        assert any("not within what --allowed-network allows" in reason for reason in scene.health.reasons)
        await scene.hear(NETWORK_KNOWN, LEASE_KNOWN)
        await asyncio.sleep(60)

    played(story, Scene(tmp_path), "10.9.0.0/16")
    assert (tmp_path / "masq.state").read_bytes() == before


DAY = 86_400.0


@pytest.mark.parametrize(
    ("ends_in", "store", "later", "is_assumed"),
    [
        (None, KUBE, 40 * DAY, True),
        (None, ETCD, DAY / 2, True),  # the time of it is the holder's; no lease lives longer than a day
        (None, ETCD, DAY + 60, False),
        (3_600.0, ETCD, 3_000.0, True),
        (3_600.0, ETCD, 4_000.0, False),
        (3_600.0, ETCD, -600.0, False),
    ],
)
def test_the_own_subnet_counts_while_it_must_be_ours(
    tmp_path: Path, ends_in: float | None, store: StoreStatus, later: float, is_assumed: bool
) -> None:
    remember(tmp_path, LEASE.with_time(None if ends_in is None else time.time() + ends_in), store=store)

    async def story(scene: Scene) -> None:
        await scene.impatient()
        assert scene.names() == (FULL if is_assumed else FULL[:1])
        assert any("may be another node's by now" in reason for reason in scene.health.reasons) is not is_assumed

    played(story, Scene(tmp_path, later))


def test_rules_that_the_firewall_has_otherwise_stay_until_a_snapshot(tmp_path: Path) -> None:
    """Of a restart without a reboot it knows more, whatever was written last."""
    remember(tmp_path)

    async def story(scene: Scene) -> None:
        newer = await rules_for(NETWORK, *MOVED.cidrs, settings=replace(ALL, forward=False))
        scene.firewall.restore(newer)
        await scene.impatient()
        assert newer in scene.firewall.dump()
        assert scene.names() == FULL  # what was missing is made
        assert await scene.reconciler.resync(dry_run=True) == []
        await scene.hear(NETWORK_KNOWN, LEASE_KNOWN)
        assert scene.firewall.dump() == await rules_for(NETWORK, *CIDRS)
        assert scene.health.ready

    played(story, Scene(tmp_path))


@pytest.mark.parametrize("what", ["damaged", "foreign", "of another node", "the dataplane's"])
def test_a_file_that_cannot_be_used_changes_nothing_and_is_kept(
    tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    remember(tmp_path)
    path = tmp_path / "masq.state"
    data = path.read_bytes()
    table = list(table_records(NETWORK, (), None))
    bad = {
        "damaged": bytes(byte ^ 1 for byte in data),
        "foreign": b"root:x:0:0:root:/root:/bin/bash\n",
        "of another node": b"".join(encode("masq", "n7", LEASE, (), table)),
        "the dataplane's": b"".join(encode("dataplane", "n1", LEASE, (), table)),
    }[what]
    path.write_bytes(bad)

    async def story(scene: Scene) -> None:
        await scene.impatient()
        assert (scene.names(), path.read_bytes()) == ([], bad)
        await scene.hear(NETWORK_KNOWN, LEASE_KNOWN)
        await asyncio.sleep(30)

    played(story, Scene(tmp_path))
    assert capsys.readouterr().out.count("the state file is not used") == 1
    assert path.with_name(f"{path.name}.refused").read_bytes() == bad
    assert decode("masq", path.read_bytes(), "n1").own == LEASE


def test_a_lease_that_is_lost_is_not_remembered(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await scene.hear(NETWORK_KNOWN, LEASE_KNOWN)
        await asyncio.sleep(30)
        await scene.hear(Step(changes=(Removed(LEASE.name),), synced=True))
        assert scene.reconciler.inputs.subnets == CIDRS

    played(story, Scene(tmp_path))
    memory = decode("masq", (tmp_path / "masq.state").read_bytes(), "n1")
    assert (memory.own, memory.table().network) == (None, NETWORK)


def test_dataplane_and_masq_may_share_a_directory(tmp_path: Path) -> None:
    with StateFile(str(tmp_path), "dataplane") as one, StateFile(str(tmp_path), "masq") as other:
        assert (one.is_usable, other.is_usable) == (True, True)


def test_an_empty_table_is_not_mistaken_for_one(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await scene.hear(Step(reset=True, network_error="there is no configuration", synced=True))
        await scene.impatient()
        assert scene.names() == []

    played(story, Scene(tmp_path))
    assert not (tmp_path / "masq.state").exists()
    assert Table().network is None
