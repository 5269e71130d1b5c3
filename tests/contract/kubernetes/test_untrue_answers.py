"""The Kubernetes store against an API server that floods it, or sends it elsewhere: an outage, bounded in memory."""

import json
import resource
from collections.abc import Callable

import pytest

from flannelette.services.core.errors import Unavailable
from flannelette.services.lease.stores.kube.client import KubeClient
from flannelette.services.lease.stores.kube.values import annotations
from tests.kubernetes.played_api import Fault, ScriptedApi, endless, node, packed, redirect, scripted_api
from tests.kubernetes.played_store import QUICK, Open
from tests.services.follower import following

_LARGEST_GROWTH = 400
"""MiB, of this process, which is server and client: what the server sends is 5.8 GB."""


def peak() -> float:
    """MiB that this process has had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


FLOODS: dict[str, tuple[Callable[[], Fault], str]] = {
    "5.8 GB": (endless, "an answer of more than 33554432 bytes"),
    "a gzip bomb": (lambda: endless(is_packed=True), "an answer of more than 33554432 bytes"),
    "half a gzip": (lambda: packed(b"{}", "gzip, br"), "Content-Encoding"),
    "no gzip": (lambda: packed(b"{}", "br"), "Content-Encoding 'br'"),
}


@pytest.mark.parametrize("flood", FLOODS)
@pytest.mark.parametrize("kind", ["list", "get"])
async def test_an_answer_has_a_bound_which_the_error_names(
    api: ScriptedApi, scripted: Open, kind: str, flood: str
) -> None:
    make, sentence = FLOODS[flood]
    before = peak()
    store = scripted()
    api.faults[kind] = [make()] * 3  # a listing is asked for in smaller pages first
    with pytest.raises(Unavailable) as caught:
        await (store.relist() if kind == "list" else store._client.read_node("n1"))
    assert sentence in str(caught.value)
    assert "is it an API server" in str(caught.value)
    assert peak() - before < _LARGEST_GROWTH
    api.faults.clear()
    assert len((await store.relist()).leases) == 7


async def test_nodes_that_are_too_large_for_a_page_are_asked_for_one_by_one() -> None:
    """Each has 1.4 MB, as many as etcd takes: a page of fifty would be 70 MB."""
    async with scripted_api(*(node(number, padding="x" * 1_400_000) for number in range(30))) as api:
        client = KubeClient(api.access, QUICK, annotations(), "test")
        nodes, _ = await client.list_nodes()
        await client.close()
        assert len(nodes) == 30


async def test_a_compressed_page_is_read(api: ScriptedApi, scripted: Open) -> None:
    items = list(api.nodes.values())[:2]
    page = {"kind": "NodeList", "metadata": {"resourceVersion": "9"}, "items": items}
    api.faults["list"] = [packed(json.dumps(page).encode())]
    assert len((await scripted().relist()).leases) == 2


async def test_a_listing_that_continues_where_it_began_does_not_go_on_for_ever(
    api: ScriptedApi, scripted: Open
) -> None:
    page = {"kind": "NodeList", "metadata": {"resourceVersion": "9", "continue": "again"}, "items": []}
    same = packed(json.dumps(page).encode())
    api.faults["list"], api.faults["continue"] = [same], [same] * 100
    with pytest.raises(Unavailable, match="does not end"):
        await scripted().relist()


@pytest.mark.parametrize("kind", ["list", "watch", "get"])
async def test_a_redirect_is_not_followed_and_our_token_goes_nowhere(
    api: ScriptedApi, scripted: Open, kind: str
) -> None:
    async with scripted_api() as elsewhere:
        api.faults[kind] = [redirect(f"{elsewhere.url}/api/v1/nodes")] * (1 if kind == "get" else 2)
        if kind == "get":
            with pytest.raises(Unavailable, match=r"sends us elsewhere \(307\)"):
                await scripted()._client.read_node("n1")
        else:
            async with following(scripted()) as seen:
                await seen.until(lambda f: len(f.leases) == 7 and f.connected and not api.faults[kind])
                assert any("sends us elsewhere (307)" in each.error for each in seen.statuses)
        assert elsewhere.requests == []
