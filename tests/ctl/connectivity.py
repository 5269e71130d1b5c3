"""`flannelette connectivity` with the context of a lab, and what it says."""

import asyncio
import json
import os
import subprocess
import sys
from typing import Any, Final, TypeAlias

from lab.topology import SERVICES
from tests.hosts.network_change import Scene
from tests.patience import PATIENCE

OUTSIDE: Final = {f"IPv{version}": str(address) for version, address in SERVICES.items()}
Failure: TypeAlias = tuple[str, str, str, str, str]
"""Test, source, target, family, and whether it is about packets of both sizes or about large ones."""


async def run(scene: Scene, *words: str) -> tuple[int, str]:
    """Exit code and standard output of `flannelette` with the context of all nodes."""
    environment = os.environ | {"FLANNELETTE_CONTEXTS": str(scene.cluster.directory / "contexts.toml")}
    command = [sys.executable, "-m", "flannelette.services.ctl.main", *words]
    done = await asyncio.to_thread(
        subprocess.run, command, env=environment, stdout=subprocess.PIPE, text=True, check=False, timeout=PATIENCE * 3
    )
    return done.returncode, done.stdout


async def connectivity(scene: Scene, families: int, *words: str) -> tuple[int, dict[str, Any]]:
    """Exit code and document."""
    outside = [word for address in [*OUTSIDE.values()][:families] for word in ("--outside", address)]
    code, output = await run(scene, "-o", "json", "connectivity", *outside, *words)
    return code, json.loads(output)


def failed(document: dict[str, Any]) -> set[Failure]:
    """What failed: packets of both sizes, or large ones."""
    found: dict[tuple[str, str, str, str], set[bool]] = {}
    for check in document["checks"]:
        if check["outcome"] == "FAILED":
            key = (check["test"], check["source"], check["target"], check["family"])
            found.setdefault(key, set()).add(bool(check["size"]))
    return {(*key, "large" if sizes == {True} else "both") for key, sizes in found.items()}


async def all_pass(scene: Scene, nodes: int, families: int) -> None:
    """As soon as every node knows a pod of each family: so many paths, with packets of two sizes."""
    paths = nodes * (nodes - 1) * families * 2
    wanted = {"overlay": paths, "underlay": paths, "pod": paths, "outside": nodes * families * 2}
    seen: object = None
    try:
        async with asyncio.timeout(3 * PATIENCE):
            while seen != (0, wanted, [], {"PASSED"}):
                code, document = await connectivity(scene, families)
                tests = [check["test"] for check in document["checks"]]
                outcomes = {check["outcome"] for check in document["checks"]}
                seen = code, {test: tests.count(test) for test in tests}, document["problems"], outcomes
    except TimeoutError:
        raise AssertionError(seen) from None
