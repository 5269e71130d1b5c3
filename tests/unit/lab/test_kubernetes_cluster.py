"""How the lab asks its API server, without a cluster."""

import asyncio

import pytest

from lab.build import CommandFailed
from lab.kubernetes import cluster
from lab.kubernetes.cluster import Cluster
from lab.kubernetes.options import Options

REFUSED = "The connection to the server 10.99.0.11:6443 was refused - did you specify the right host or port?"
NO_ANSWER = "Unable to connect to the server: dial tcp 10.99.0.11:6443: i/o timeout"
NOT_FOUND = 'Error from server (NotFound): namespaces "kube-flannel" not found'
BROKEN_OFF = "Unable to connect to the server: read tcp 10.99.0.1:37000->10.99.0.11:6443: connection reset by peer"


def kubectl(monkeypatch: pytest.MonkeyPatch, *says: str) -> tuple[str, int]:
    """What the lab's kubectl gives where the program complains so, then prints "ok"; and how often it was run."""
    left, runs = list(says), 0

    async def run(*command: str) -> str:
        nonlocal runs
        runs += 1
        if left:
            raise CommandFailed(f"{' '.join(command)}: {left.pop(0)}")
        return "ok"

    monkeypatch.setattr(cluster, "run", run)
    monkeypatch.setattr(cluster, "POLL_SECONDS", 0.0)
    try:
        return asyncio.run(Cluster(Options()).kubectl("delete", "pod", "web")), runs
    except CommandFailed as error:
        return str(error).partition(": ")[2], runs


def test_an_api_server_that_takes_no_connections_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kubectl(monkeypatch, REFUSED, NO_ANSWER, REFUSED) == ("ok", 4)


@pytest.mark.parametrize("complaint", [NOT_FOUND, BROKEN_OFF])
def test_a_command_that_has_reached_the_api_server_is_not_said_twice(
    complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kubectl(monkeypatch, complaint) == (complaint, 1)


def test_an_api_server_that_stays_away_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_READY_SECONDS", 0.0)
    said, _ = kubectl(monkeypatch, *[REFUSED] * 100)
    assert said == REFUSED
