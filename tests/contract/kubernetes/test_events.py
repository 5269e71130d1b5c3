"""Kubernetes Events of nodes on a real kube-apiserver: a fault of a node goes in, `kubectl get events` shows it."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import grpc.aio
import pytest
from structlog.testing import capture_logs

from flannelette.services.core.errors import NotYet
from flannelette.services.lease.stores.kube.store import KubeStore
from flannelette.services.lease.stores.kube.values import KubeSettings
from flannelette.services.runtime.lease.wire import request_to_proto
from tests.kubernetes.api_server import ApiServer, Document
from tests.kubernetes.manifests import OVERLAYS, Kubectl
from tests.kubernetes.stores import MANAGED, QUICK, V4, Open, asks
from tests.patience import PATIENCE
from tests.services.follower import following
from tests.services.lease import ServiceProcess, stub_of
from tests.waiting import eventually

EVENTS = "/api/v1/namespaces/default/events"
FAST = replace(QUICK, pod_cidr=0.2, event_pause=0.2, event_repeat=1.0)
ROLE = "/apis/rbac.authorization.k8s.io/v1/clusterroles/flannel"
MERGE = "application/merge-patch+json"
OTHER = V4.replace("10.244", "10.9")


@pytest.fixture(autouse=True)
def _no_events_of_before(kube: ApiServer) -> Iterator[None]:
    kube.call("DELETE", EVENTS)
    yield
    kube.call("DELETE", EVENTS)


def events_of(kube: ApiServer, node: str) -> list[Document]:
    """As `kubectl describe node` looks for them: by the kind, and by the node's name as the uid."""
    query = f"involvedObject.kind%3DNode%2CinvolvedObject.name%3D{node}%2CinvolvedObject.uid%3D{node}"
    found: list[Document] = kube.call("GET", f"{EVENTS}?fieldSelector={query}")["items"]
    return found


def token_of(kube: ApiServer, name: str = "flannel") -> str:
    """Of a service account of the manifests."""
    account = f"/api/v1/namespaces/kube-flannel/serviceaccounts/{name}/token"
    wanted = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    return str(kube.call("POST", account, wanted)["status"]["token"])


async def event(
    kube: ApiServer, node: str, reason: str, is_it: Callable[[Document], bool] = lambda _: True
) -> Document:
    """The one Event of the node for this reason, as soon as it is there and so."""
    (found,) = await eventually(
        lambda: [each for each in events_of(kube, node) if each["reason"] == reason],
        lambda found: len(found) == 1 and is_it(found[0]),
    )
    return found


@asynccontextmanager
async def writing(store: KubeStore) -> AsyncIterator[None]:
    """As the lease service runs it."""
    task = asyncio.create_task(store.write_events())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def refused(store: KubeStore, node: str, **wanted: str) -> str:
    with pytest.raises(NotYet) as caught:
        await store.acquire(asks(node, **wanted))
    return str(caught.value)


async def test_a_node_without_a_pod_cidr_has_an_event_written_by_the_service_with_the_rights_of_the_manifests(
    kube: ApiServer, kubectl: Kubectl, tmp_path: Path
) -> None:
    kubectl("apply", "-k", str(OVERLAYS / "per-node"))
    (tmp_path / "net-conf.json").write_text(V4)
    kube.make_node("a")
    flags = (
        "--store=kube",
        "--node=a",
        f"--kubeconfig-file={kube.kubeconfig(token_of(kube))}",
        f"--net-config-path={tmp_path}/net-conf.json",
    )
    with ServiceProcess(tmp_path, *flags) as process:
        async with stub_of(process.address) as stub:
            told = ""
            for _ in range(2):  # the first answer comes at once: each new node lacks a podCIDR for a moment
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await stub.AcquireLease(request_to_proto(asks("a")), timeout=PATIENCE)
                told = str(caught.value.details())
            found = await event(kube, "a", "NoPodCIDR")
    assert found["message"] == told, "it says what `flannelette status` says"
    assert (found["type"], found["count"], found["source"]["component"]) == ("Warning", 1, "flannelette-lease")
    assert "NoPodCIDR" in kubectl("describe", "node", "a")


async def test_a_problem_that_lasts_is_one_event_whose_count_grows_slowly(kube: ApiServer, opened: Open) -> None:
    kube.make_node("a")
    store = opened(timing=replace(FAST, event_repeat=1.5))
    async with writing(store):
        started = time.monotonic()
        while time.monotonic() - started < 4:
            await refused(store, "a")
        elapsed = time.monotonic() - started
        found = await event(kube, "a", "NoPodCIDR", lambda each: each["count"] > 1)
    assert 2 <= found["count"] <= 1 + elapsed / 1.5
    assert found["firstTimestamp"] < found["lastTimestamp"]


async def test_a_restarted_service_goes_on_with_the_event_of_before(kube: ApiServer, opened: Open) -> None:
    kube.make_node("a", "10.244.1.0/24", annotations=MANAGED)
    kube.annotate("a", public_ip="nonsense")
    counts: list[int] = []
    for _ in range(2):
        store = opened(node="a", timing=FAST)
        async with following(store), writing(store):
            before = await event(kube, "a", "LeaseRefused")
            counts.append(before["count"])
            found = await event(kube, "a", "LeaseRefused", lambda each: each["count"] > counts[-1])
    assert counts[0] == 1
    assert counts[1] >= 2
    assert found["firstTimestamp"] == before["firstTimestamp"]
    assert "'nonsense', which is not an IPv4 address" in found["message"]


async def test_an_address_that_another_node_has_is_an_event_of_the_node_that_is_refused(
    kube: ApiServer, opened: Open
) -> None:
    kube.make_node("a", "10.244.1.0/24")
    kube.make_node("b", "10.244.2.0/24")
    store = opened(timing=FAST)
    async with following(store) as seen, writing(store):
        await store.acquire(asks("a"))
        await seen.until(lambda f: "a" in f.leases)
        told = await refused(store, "b", mac="02:00:00:00:00:99")
        found = await event(kube, "b", "AddressClaimedTwice")
    assert found["message"] == told
    assert "192.168.0.1" in told
    assert events_of(kube, "a") == []


async def test_a_pending_network_change_is_an_event_of_each_node_that_it_concerns(
    kube: ApiServer, opened: Open
) -> None:
    for number in (1, 2):
        address = {**MANAGED, "flannel.alpha.coreos.com/public-ip": f"192.168.0.{number}"}
        kube.make_node(f"n{number}", f"10.244.{number}.0/24", annotations=address)
    kube.make_node("n3", "10.9.3.0/24", annotations=MANAGED)
    store = opened(OTHER, timing=FAST, written=time.time() + 60)  # the nodes are older than the configuration
    async with following(store), writing(store):
        for number in (1, 2):
            found = await event(kube, f"n{number}", "NetworkChangePending")
            assert f"n{number} would move from 10.244.{number}.0/24" in found["message"]
    assert events_of(kube, "n3") == []


async def test_the_service_of_one_node_writes_of_that_node_only(kube: ApiServer, opened: Open) -> None:
    for number in (1, 2):
        kube.make_node(f"n{number}", f"10.244.{number}.0/24", annotations=MANAGED)
        kube.annotate(f"n{number}", public_ip="nonsense")
    store = opened(node="n1", timing=FAST)
    async with following(store), writing(store):
        await event(kube, "n1", "LeaseRefused", lambda each: each["count"] > 1)
    assert events_of(kube, "n2") == []


async def test_without_the_right_to_write_events_nodes_get_their_leases_and_the_log_says_it_once(
    kube: ApiServer, kubectl: Kubectl, tmp_path: Path
) -> None:
    kubectl("apply", "-k", str(OVERLAYS / "per-node"))
    rules = kube.call("GET", ROLE)["rules"]
    kube.call("PATCH", ROLE, {"rules": [rule for rule in rules if rule["resources"] != ["events"]]}, MERGE)
    (tmp_path / "net-conf.json").write_text(V4)
    kube.make_node("a", "10.244.1.0/24")
    kube.make_node("b")
    settings = KubeSettings(network_file=tmp_path / "net-conf.json")
    store = KubeStore(settings, timing=FAST, access=kube.access(token_of(kube)))
    with capture_logs() as lines:
        async with writing(store):
            started = time.monotonic()
            while time.monotonic() - started < 2:  # ten times as long as between two attempts to write
                await refused(store, "b")
            assert (await store.acquire(asks("a"))).name == "a"
    await store.close()
    said = [line for line in lines if "Events of nodes cannot be written" in line["event"]]
    assert len(said) == 1
    assert "create and patch of events" in said[0]["reason"]
