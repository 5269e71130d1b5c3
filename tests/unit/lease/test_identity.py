"""Whose request it is."""

import pytest

from flannelette.services.core.errors import Forbidden, InvalidInput
from flannelette.services.lease.service import Identity

OWN, CENTRAL = Identity("a"), Identity()


def test_a_nodes_own_service_takes_an_empty_node_for_itself() -> None:
    assert OWN.any_node("") == OWN.one_node("") == OWN.one_node("a") == "a"


def test_another_nodes_business_is_refused() -> None:
    for ask in (OWN.any_node, OWN.one_node):
        with pytest.raises(Forbidden, match="serves node a only, not b"):
            ask("b")


def test_a_central_service_needs_the_node_where_it_matters() -> None:
    assert CENTRAL.any_node("") == ""
    assert CENTRAL.one_node("b") == "b"
    with pytest.raises(InvalidInput, match="node is empty"):
        CENTRAL.one_node("")


@pytest.mark.parametrize("node", ["a/b", " a", "a\n", "-a", "a.", "ä", "a" * 254, "..", "a\0"])
def test_what_is_no_node_name_is_refused(node: str) -> None:
    for identity in (OWN, CENTRAL):
        with pytest.raises(InvalidInput, match="is not a valid node name"):
            identity.one_node(node)


@pytest.mark.parametrize("node", ["a", "node-1.example.org", "ip-10-0-0-1", "my_host", "0", "a" * 253])
def test_host_names_are_node_names(node: str) -> None:
    assert CENTRAL.one_node(node) == node
