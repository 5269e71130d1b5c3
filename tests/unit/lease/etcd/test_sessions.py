"""Which sessions a lease service writes and deletes, given who is connected to it and what etcd holds."""

from flannelette.services.lease.stores.etcd.store import differences
from flannelette.services.lease.stores.etcd.values import Item

OURS, THEIRS = 7, 8


def session(node: str, etcd_lease: int) -> Item:
    return Item(f"/net/sessions/{node}".encode(), b"{}", 20, etcd_lease)


def wanted(*nodes: str) -> dict[str, bytes]:
    return dict.fromkeys(nodes, b"{}")


def test_a_session_is_written_once_and_deleted_when_its_node_has_gone() -> None:
    assert differences(wanted("n1", "n2"), set(), {}, OURS) == (["n1", "n2"], [])
    there = {node: session(node, OURS) for node in ("n1", "n2")}
    assert differences(wanted("n1", "n2"), {"n1", "n2"}, there, OURS) == ([], [])
    assert differences(wanted("n2"), {"n1", "n2"}, there, OURS) == ([], [there["n1"]])


def test_a_node_that_comes_from_another_service_moves_here_and_is_left_alone_when_it_moves_on() -> None:
    elsewhere = {"n1": session("n1", THEIRS)}
    assert differences(wanted("n1"), set(), elsewhere, OURS) == (["n1"], [])
    assert differences(wanted("n1"), {"n1"}, elsewhere, OURS) == ([], [])
    assert differences(wanted(), {"n1"}, elsewhere, OURS) == ([], [])


def test_a_session_that_somebody_deleted_comes_back() -> None:
    assert differences(wanted("n1"), {"n1"}, {}, OURS) == (["n1"], [])


def test_a_key_on_no_etcd_lease_is_nobodys_as_long_as_we_have_none() -> None:
    assert differences(wanted(), set(), {"n1": session("n1", 0)}, 0) == ([], [])


def test_a_session_of_ours_that_says_something_else_is_written_again_and_that_of_others_is_left_alone() -> None:
    on_another_machine = {"n1": b'{"machine":"m2"}'}
    assert differences(on_another_machine, {"n1"}, {"n1": session("n1", OURS)}, OURS) == (["n1"], [])
    assert differences(on_another_machine, {"n1"}, {"n1": session("n1", THEIRS)}, OURS) == ([], [])
