"""Whatever happens to etcd, in whatever order: the service ends up serving what etcd holds, and has lost nothing."""

import os
from pathlib import Path
from typing import Final

import pytest

from tests.etcd.keys import CONFIG, PREFIX
from tests.etcd.schedule import HASTY, scheduled
from tests.etcd.server import EtcdServer

SOAK: Final = os.environ.get("FLANNELETTE_SOAK") == "1"
FIRST: Final = int(os.environ["FLANNELETTE_SEED"])
"""FLANNELETTE_SEED=1234 tries that schedule first; the number stands in the name of a test that failed."""


@pytest.mark.parametrize("seed", range(FIRST, FIRST + (300 if SOAK else 6)), ids="seed={}".format)
async def test_what_is_served_is_what_etcd_holds_after_any_schedule_of_faults(
    own_etcd: EtcdServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr("flannelette.services.lease.stores.etcd.store.Timing", lambda: HASTY)
    own_etcd.etcdctl("put", f"{PREFIX}/config", CONFIG)
    async with scheduled(own_etcd, tmp_path, seed) as schedule:
        try:
            await schedule.run(length=25)
            truth = await schedule.settled()
        except TimeoutError:
            pytest.fail(f"{schedule.steps}: {schedule.feed.table}")
        nodes = truth.nodes()
        assert len(nodes) == len(set(nodes)), f"no node has two: {schedule.steps}"
        assert schedule.held <= set(nodes), f"none was lost: {schedule.steps}"
        assert not schedule.missing, f"and none for a moment: {schedule.steps}"
