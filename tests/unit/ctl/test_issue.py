"""Certificates of a lab's authority: never longer than it lasts itself."""

from datetime import UTC, datetime, timedelta

import pytest

from flannelette.services.ctl.certificates import CertificateRequest, Unusable, issue, make_authority, read_authority

NOW = datetime(2026, 11, 20, tzinfo=UTC)


def test_a_certificate_ends_with_its_authority_at_the_latest() -> None:
    made = make_authority("lab", NOW, days=100)
    authority = read_authority(made.certificate, made.key)
    wanted = CertificateRequest("h1", uris=("flannelette://node/h1/masq",))
    assert made.not_after == NOW + timedelta(days=100)
    assert issue(authority, wanted, NOW, days=30).not_after == NOW + timedelta(days=30)
    assert issue(authority, wanted, NOW, days=365).not_after == made.not_after
    with pytest.raises(Unusable, match="the authority expired on 2027-02-28: make a new one"):
        issue(authority, wanted, made.not_after, days=1)


def test_every_certificate_has_a_key_of_its_own() -> None:
    made = make_authority("lab", NOW, days=1)
    authority = read_authority(made.certificate, made.key)
    keys = {issue(authority, CertificateRequest("a", addresses=("a",)), NOW, 1).key for _ in range(3)}
    assert len(keys | {made.key}) == 4
