"""From the last release to this one and back, service by service, under pings: what docs/upgrading.md promises.

Each service is replaced first at one host and last at another, and then all at once by the last release's. With
FLANNELETTE_SOAK=1 one service is replaced after another, there and back, in each order at each host.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import ROOT
from tests.upgrade.golden import RELEASES
from tests.upgrade.releases import LAST, unpacked

SOAK = bool(os.environ.get("FLANNELETTE_SOAK"))
STORES = ("etcd", "embedded")


def run(home: Path, *words: str | Path) -> dict[str, object]:
    command = [sys.executable, "-m", "tests.upgrade", *words]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=os.environ | {"TMPDIR": str(home)})
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found: dict[str, object] = json.loads(ran.stdout)
    return found


@pytest.mark.parametrize("store", STORES if SOAK else STORES[:1])
def test_every_service_becomes_one_of_this_release_and_of_the_last_again_and_no_packet_is_lost(
    home: Path, store: str
) -> None:
    found = run(home, "there-and-back", store, unpacked(LAST, home), "soak" if SOAK else "quick")
    assert found.pop("sent")
    assert found.pop("replaced")
    ways_back = 6 if SOAK else 1
    kept = [f"{service} of h{number}" for service in ("dataplane", "masq") for number in (1, 2, 3)]
    assert found.pop("forgotten") == dict.fromkeys(kept, ways_back), "0.2.0 cannot read what 0.3 keeps, and says so"
    assert found == {"lost": 0, "changes": [], "changed": [], "complaints": [], "failures": []}


@pytest.mark.parametrize("store", STORES)
def test_what_the_last_release_leaves_is_taken_over_as_it_is(home: Path, store: str) -> None:
    found = run(home, "take-over", store, RELEASES / LAST / store)
    assert found.pop("sent")
    assert found == {"lost": 0, "repairs": 0, "unclaimed": [], "changed": [], "complaints": [], "failures": []}
