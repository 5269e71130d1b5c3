"""The table in docs/compatibility.md is the model's."""

from flannelette.services.masq.rules import Action
from tests.examples.masq_matrix import BY_FLANNELDS_NFTABLES, deciding, flannelds_nftables_table, table
from tests.paths import ROOT

PAGE = ROOT / "docs" / "compatibility.md"


def test_the_table_of_the_page_is_the_models() -> None:
    assert table() in PAGE.read_text()


def test_the_rows_in_which_flannelds_nftables_mode_differs_are_those_of_the_page() -> None:
    """A regression test of hole 17."""
    assert flannelds_nftables_table() in PAGE.read_text()
    for sender, receiver in BY_FLANNELDS_NFTABLES:
        rule = deciding(sender, receiver)
        assert rule is not None
        assert rule.action is Action.MASQUERADE


def test_the_nodes_own_packets_to_the_outside_are_nobodys_business() -> None:
    assert deciding("this node", "the outside") is None


def test_only_what_nobody_could_answer_is_masqueraded() -> None:
    rule = deciding("a pod of this node", "the outside")
    assert rule is not None
    assert rule.action is Action.MASQUERADE
