"""Keys and holders: what is whose under the prefix."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flannelette.services.core.errors import InvalidInput
from flannelette.services.core.leases.flannel_json import parse_lease
from flannelette.services.lease.stores.etcd.keys import (
    Holder,
    KeyKind,
    Keyspace,
    decode,
    format_holder,
    holder_of,
    parse_holder,
    read_configuration,
    readable,
)
from flannelette.services.lease.stores.etcd.rpc.values import Item, end_of

KEYS = Keyspace("/coreos.com/network")


@pytest.mark.parametrize(
    ("key", "kind", "name"),
    [
        (b"/coreos.com/network/config", KeyKind.CONFIG, "/coreos.com/network/config"),
        (b"/coreos.com/network/subnets/10.5.52.0-24", KeyKind.SUBNET, "10.5.52.0-24"),
        (b"/coreos.com/network/subnets/10.5.52.0-24&fd00::-64", KeyKind.SUBNET, "10.5.52.0-24&fd00::-64"),
        (b"/coreos.com/network/subnets/a/b", KeyKind.SUBNET, "a/b"),
        (b"/coreos.com/network/subnets/\xff", KeyKind.SUBNET, "\\xff"),
        (b"/coreos.com/network/subnets/", KeyKind.FOREIGN, "/coreos.com/network/subnets/"),
        (b"/coreos.com/network/subnets", KeyKind.FOREIGN, "/coreos.com/network/subnets"),
        (b"/coreos.com/network/subnets-old/x", KeyKind.FOREIGN, "/coreos.com/network/subnets-old/x"),
        (b"/coreos.com/network/holders/10.5.52.0-24", KeyKind.HOLDER, "10.5.52.0-24"),
        (b"/coreos.com/network/holders/", KeyKind.OTHER, "/coreos.com/network/holders/"),
        (b"/coreos.com/network/sessions/n1", KeyKind.SESSION, "n1"),
        (b"/else/coreos.com/network/sessions/n1", KeyKind.OTHER, "/else/coreos.com/network/sessions/n1"),
        (b"/coreos.com/network/config2", KeyKind.OTHER, "/coreos.com/network/config2"),
    ],
)
def test_every_key_is_of_one_kind(key: bytes, kind: KeyKind, name: str) -> None:
    assert KEYS.classify(key) == (kind, name)


ANY_BYTES = st.binary(max_size=12) | st.text("\\x0/\n é", max_size=6).map(str.encode)


def test_why_a_key_is_refused_is_told_in_a_thousand_characters_however_long_its_value_is() -> None:
    value = b'{"PublicIP":"%s"}' % (1_000_000 * b"x")
    refused = decode(KEYS, Item(KEYS.subnet("10.5.52.0-24"), value, 2, 7)).error
    assert refused.startswith("PublicIP 'xxx")
    assert len(refused) == 1000
    _, refused = read_configuration(KEYS.config, Item(KEYS.config, b'{"Network":"%s"}' % (1_000_000 * b"x"), 2, 0))
    assert len(refused) == 1000


@given(ANY_BYTES, ANY_BYTES)
def test_a_key_is_told_as_printable_text_that_no_other_key_has(one: bytes, other: bytes) -> None:
    assert readable(one).isprintable()
    assert (readable(one) == readable(other)) is (one == other)


def test_our_keys_are_never_seen_by_flanneld() -> None:
    assert KEYS.subnet("10.5.52.0-24") == b"/coreos.com/network/subnets/10.5.52.0-24"
    assert not KEYS.holder("10.5.52.0-24").startswith(b"/coreos.com/network/subnets")


def test_a_range_ends_behind_its_prefix() -> None:
    assert end_of(b"/coreos.com/network/") == b"/coreos.com/network0"


DUAL = parse_lease("10.5.52.0-24&fd00::-64", '{"PublicIP":"10.99.0.1","PublicIPv6":"fd99::1","BackendV6Data":{}}')
SINGLE = parse_lease("10.5.52.0-24", '{"PublicIP":"10.99.0.1","PublicIPv6":null}')


def test_a_holder_is_compact_json_with_both_addresses() -> None:
    written = format_holder(Holder("n1", "10.99.0.1", ""))
    assert written == b'{"node":"n1","public_ip":"10.99.0.1","public_ipv6":""}'
    assert parse_holder("10.5.52.0-24", written) == Holder("n1", "10.99.0.1", "")


def test_a_holder_holds_while_its_addresses_are_the_leases() -> None:
    assert Holder("n1", "10.99.0.1", "").holds(SINGLE)
    assert not Holder("n1", "10.99.0.2", "").holds(SINGLE)
    assert not Holder("n1", "10.99.0.1", "").holds(DUAL)
    assert holder_of(DUAL).holds(DUAL)


@pytest.mark.parametrize(
    "value", [b"", b"[]", b"{}", b'{"node":1}', b'{"node":""}', b"\xff", b'{"node":"%s"}' % (513 * b"n")]
)
def test_a_holder_that_names_no_node_is_refused(value: bytes) -> None:
    with pytest.raises(InvalidInput, match=r"holders/10\.5\.52\.0-24"):
        parse_holder("10.5.52.0-24", value)


def test_a_holder_of_what_is_no_lease_is_refused() -> None:
    with pytest.raises(InvalidInput, match="'junk' is not a lease"):
        parse_holder("junk", b'{"node":"n1"}')


@given(
    st.text(min_size=1, max_size=4), st.sampled_from(["", "10.99.0.1"]), st.sampled_from(["", "fd99::1", "::1.2.3.4"])
)
def test_a_holder_comes_back_whatever_its_node_is_called(node: str, public_ip: str, public_ipv6: str) -> None:
    holder = Holder(node, public_ip, public_ipv6)
    assert parse_holder("10.5.52.0-24", format_holder(holder)) == holder
    with_blanks = format_holder(holder).replace(b":", b": ", 1)
    assert parse_holder("10.5.52.0-24", with_blanks) == holder
