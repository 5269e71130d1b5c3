"""What the Kubernetes API sends, read without Kubernetes: a Node, a page of a listing, the lines of a watch."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flannelette.services.lease.stores.kube.values import Expired, Lines, Node, NotANode, read_batch, read_node
from tests.kubernetes.node_examples import KEYS, F


def test_a_node_is_read_with_our_annotations_only() -> None:
    document = {
        "metadata": {
            "name": "a",
            "creationTimestamp": "2026-01-31T12:00:00Z",
            "annotations": {f"{F}public-ip": "1.2.3.4", "volumes.kubernetes.io/x": "y"},
        },
        "spec": {"podCIDR": "10.244.1.0/24"},
    }
    node = read_node(document, KEYS)
    assert node == Node("a", ("10.244.1.0/24",), {f"{F}public-ip": "1.2.3.4"}, 1769860800)
    document["spec"] = {"podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24", "fd00::/64"]}
    assert read_node(document, KEYS).pod_cidrs == ("10.244.1.0/24", "fd00::/64")
    assert read_node({"metadata": {"name": "bare"}}, KEYS) == Node("bare")


def test_a_claim_is_as_old_as_what_its_node_published_last_and_not_as_the_node_or_what_an_operator_wrote() -> None:
    def entry(time: str, **annotations: object) -> dict[str, Any]:
        fields = {"f:metadata": {"f:annotations": annotations}, "f:status": {"f:conditions": {}}}
        return {"manager": "m", "operation": "Update", "time": time, "fieldsV1": fields}

    metadata: dict[str, Any] = {"name": "a", "creationTimestamp": "2026-01-31T12:00:00Z", "managedFields": []}
    assert read_node({"metadata": metadata}, KEYS).claimed == 1769860800
    metadata["managedFields"] = [
        entry("2026-01-31T12:00:05Z", **{f"f:{F}public-ip": {}}),
        entry("2026-01-31T12:00:09Z", **{f"f:{F}backend-data": {}}),
        entry("2026-01-31T13:00:00Z", **{"f:volumes.kubernetes.io/x": {}}),  # a kubelet's heartbeat
        entry("2026-01-31T13:00:01Z", **{f"f:{F}public-ip-overwrite": {}, f"f:{F}node-public-ip": {}}),
        entry("2026-01-31T13:00:02Z", **{f"f:{F}public-ipv6-overwrite": {}, f"f:{F}note-of-ours": {}}),
        {"manager": "k", "fieldsV1": {"f:spec": {}}},
    ]
    assert read_node({"metadata": metadata}, KEYS).claimed == 1769860809


def test_half_a_surrogate_pair_in_an_annotation_is_text_that_can_be_told_on() -> None:
    node = read_node({"metadata": {"name": "a", "annotations": {f"{F}backend-data": '"a\ud800é"'}}}, KEYS)
    assert node.annotation(f"{F}backend-data") == '"a?é"'


def test_no_claim_is_older_than_its_node_whatever_its_managed_fields_say() -> None:
    fields: dict[str, Any] = {"f:metadata": {"f:annotations": {f"f:{F}public-ip": {}}}}
    metadata: dict[str, Any] = {"name": "a", "creationTimestamp": "2026-01-31T12:00:00Z"}
    metadata["managedFields"] = [{"manager": "x", "time": "1990-01-01T00:00:00Z", "fieldsV1": fields}]
    assert read_node({"metadata": metadata}, KEYS).claimed == 1769860800


@pytest.mark.parametrize("time", ["1272-01-31T12:00:00Z", "0001-01-01T00:00:00", "yesterday", 7, None])
def test_a_claim_that_says_it_is_older_than_any_can_be_counts_as_the_youngest(time: Any) -> None:
    assert read_node({"metadata": {"name": "a", "creationTimestamp": time}}, KEYS).claimed == 0


@pytest.mark.parametrize(
    "document",
    [
        None,
        7,
        [],
        {},
        {"metadata": {"name": ""}},
        {"metadata": {"name": 7}},
        {"metadata": {"name": "a", "annotations": []}},
        {"metadata": {"name": "a", "annotations": {f"{F}public-ip": 7}}},
        {"metadata": {"name": "a"}, "spec": 7},
        {"metadata": {"name": "a"}, "spec": {"podCIDRs": "10.0.0.0/24"}},
        {"metadata": {"name": "a"}, "spec": {"podCIDRs": [7]}},
    ],
)
def test_what_is_no_node_is_told(document: Any) -> None:
    with pytest.raises(NotANode):
        read_node(document, KEYS)


@given(
    st.lists(st.text(st.characters(blacklist_characters="\n\r", blacklist_categories=["Cs"]), min_size=1)), st.data()
)
def test_lines_are_the_same_however_they_arrive(texts: list[str], data: st.DataObject) -> None:
    stream = "".join(f"{text}\n" for text in texts).encode()
    lines, found, place = Lines(), [], 0
    while place < len(stream):
        size = data.draw(st.integers(1, len(stream) - place))
        found += list(lines.feed(stream[place : place + size]))
        place += size
    assert found == [text.encode() for text in texts if text.encode().strip()]
    assert lines.rest == b""


def test_a_line_that_is_nested_too_deeply_is_no_event() -> None:
    with pytest.raises(NotANode, match="too deeply"):
        read_batch([b"[" * 10_000], KEYS, "server")


def test_a_line_without_end_is_refused() -> None:
    lines = Lines()
    lines.feed(b"x" * (10 << 20))
    with pytest.raises(ValueError, match="a line of more than"):
        lines.feed(b"x" * (10 << 20))


def test_an_unknown_error_of_the_watch_means_listing_anew() -> None:
    for error in ({"code": 418}, {}, None, "nonsense"):
        with pytest.raises(Expired):
            read_batch([json.dumps({"type": "ERROR", "object": error}).encode()], KEYS, "server")
