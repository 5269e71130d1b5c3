"""Who may do what, by the URIs of a certificate."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flannelette.services.core.access import Principal, Requirement, Role, principals, refusal

H1 = Principal(Role.DATAPLANE, "h1")
MASQ = Principal(Role.MASQ, "h1")
RELAY = Principal(Role.RELAY, "rack7")
ADMIN = Principal(Role.ADMIN, "ada")

names = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,20}[A-Za-z0-9])?", fullmatch=True).filter(str.isascii)


@given(st.builds(Principal, st.sampled_from(Role), names))
def test_a_uri_says_who_it_is_and_nobody_else(principal: Principal) -> None:
    assert principals([principal.uri]) == {principal}


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "spiffe://example.org/ns/default",
        "flannelette://node/h1",
        "flannelette://node//dataplane",
        "flannelette://node/h1/dataplane/",
        "flannelette://node/h1/dataplane?x",
        "flannelette://node/h1/lease",
        "flannelette://node/h1%2Fx/dataplane",
        "flannelette://node/h1/../h2/dataplane",
        "flannelette://node/-h1/dataplane",
        "flannelette://node/h1/dataplane\n",
        "FLANNELETTE://node/h1/dataplane",
        "flannelette://admin/",
        "flannelette://admin",
        "flannelette://root/x",
        "https://x/flannelette://admin/x",
        "flannelette://admin/" + "x" * 254,
        "flannelette://admin/\N{LATIN SMALL LETTER E WITH ACUTE}",
    ],
)
def test_what_is_not_exactly_one_of_ours_is_nobody(uri: str) -> None:
    assert principals([uri]) == frozenset()
    assert all(refusal(principals([uri]), requirement, "h1") for requirement in Requirement)


def test_a_certificate_may_have_several_uris() -> None:
    assert principals([H1.uri, "https://example.org", ADMIN.uri]) == {H1, ADMIN}


@pytest.mark.parametrize(
    ("requirement", "node", "whole", "allowed"),
    [
        (Requirement.MEMBER, "", True, {H1, MASQ, RELAY, ADMIN}),
        (Requirement.MEMBER, "h2", True, {H1, MASQ, RELAY, ADMIN}),
        (Requirement.HOLDER, "h1", True, {H1, RELAY}),
        (Requirement.HOLDER, "h2", True, {RELAY}),
        (Requirement.HOLDER, "H1", True, {RELAY}),
        (Requirement.HOLDER, "", True, set()),
        (Requirement.ADMIN, "", True, {ADMIN}),
        (Requirement.ADMIN, "h1", True, {ADMIN}),
        (Requirement.WATCHER, "", True, {H1, MASQ, RELAY, ADMIN}),
        (Requirement.WATCHER, "h2", False, {H1, MASQ, RELAY, ADMIN}),
        (Requirement.WATCHER, "h1", True, {H1, RELAY}),
        (Requirement.WATCHER, "h2", True, {RELAY}),
    ],
)
def test_each_requirement_lets_in_exactly_these(
    requirement: Requirement, node: str, whole: bool, allowed: set[Principal]
) -> None:
    let_in = {who for who in (H1, MASQ, RELAY, ADMIN) if not refusal({who}, requirement, node, whole=whole)}
    assert let_in == allowed
    assert refusal(set(), requirement, node, whole=whole)


def test_a_refusal_says_which_certificate_would_do_and_which_was_shown() -> None:
    assert refusal({H1}, Requirement.HOLDER, "h2") == (
        "only the dataplane of node h2 may do this for it: a certificate with the URI "
        "flannelette://node/h2/dataplane; this is flannelette://node/h1/dataplane"
    )
    assert "flannelette://admin/NAME" in refusal({H1, MASQ}, Requirement.ADMIN)
    assert refusal(set(), Requirement.MEMBER).startswith("the certificate has no URI like flannelette://node/NAME/")
