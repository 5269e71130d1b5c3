"""What is remembered over a reboot: each record comes back as it was, or not at all."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.leases.table import PublicIpOverride
from flannelette.services.runtime.cache import table_records
from flannelette.services.runtime.state import RecordFile, UnreadableState, sealed
from tests.examples.dataplane import CAPTURED, lease, subnet
from tests.examples.leases import SMALL_JSON, network
from tests.examples.state_files import decode, encode

NETWORK = network(SMALL_JSON)
OWN = replace(lease(subnet("10.5.27.0/24", "10.99.0.11", "76:92:07:f7:74:5d"), node="n1"), expires_at=1_800_000_000.0)
PEERS = [lease(part, node=node) for node, part in CAPTURED.items()]
FORMER = (ip_network("10.5.27.0/24"), ip_network("fd00:10:5:1b::/64"), ip_network("10.6.1.0/24"))


def written(leases: Sequence[Lease] = PEERS, own: Lease | None = OWN, node: str = "n1") -> bytes:
    return b"".join(encode("dataplane", node, own, FORMER, table_records(NETWORK, leases, None)))


def test_it_comes_back_as_it_was() -> None:
    memory = decode("dataplane", written(), "n1")
    table = memory.table()
    assert (memory.own, memory.previous_subnets) == (OWN, FORMER)
    assert table.leases == {each.name: each for each in (*PEERS, OWN)}
    assert (table.network, table.synced, table.cursor) == (NETWORK, True, "")


def test_what_operators_have_chosen_comes_back() -> None:
    overrides = {"n1": (PublicIpOverride(4, "10.98.0.11", "a note"),)}
    pieces = table_records(NETWORK, PEERS, None, overrides)
    memory = decode("dataplane", b"".join(encode("dataplane", "n1", OWN, FORMER, pieces)), "n1")
    assert memory.table().overrides == overrides
    assert decode("dataplane", written(), "n1").table().overrides == {}


def test_without_an_own_lease_there_is_none() -> None:
    memory = decode("dataplane", written(own=None), "n1")
    assert memory.own is None
    assert memory.table().leases.keys() == {each.name for each in PEERS}


async def test_many_leases_are_packed_some_at_a_time_while_others_run(tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "file", "dataplane.state")
    many = [lease(subnet(f"10.5.{n >> 4}.{n % 16 * 16}/28"), node=f"n{n}") for n in range(600)]
    packing = asyncio.create_task(file.write_slowly(table_records(NETWORK, many, None)))
    turns = 0
    while not packing.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns > 3
    assert await packing
    assert len(file.read()) == 601
    assert len(decode("dataplane", written(many, None), "n1").table().leases) == 600


@given(st.data())
def test_whatever_is_wrong_with_it_the_rest_is_as_it_was(data: st.DataObject) -> None:
    whole = written()
    if data.draw(st.booleans()):
        broken = whole[: data.draw(st.integers(0, len(whole) - 1))]
    else:
        at, bit = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(0, 7))
        broken = whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :]
    try:
        state = decode("dataplane", broken, "n1")
        table = state.table()
    except UnreadableState as error:
        reason = str(error)
    else:
        reason = ""
    if reason:
        assert reason in REFUSED
        return
    assert state.own in (OWN, None)
    assert state.previous_subnets == FORMER
    assert table.network == NETWORK
    assert table.leases.items() <= {each.name: each for each in (*PEERS, OWN)}.items()


LATER = b"file dataplane.state 3 0 00000000"
REFUSED = {
    "the file is damaged, or another kind of file",
    "the record node, which every file has, is damaged",
    "the file has no complete lease table",
}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "the file is damaged, or another kind of file"),
        (b"\x7fELF\x02\x01\x01\0\0\n", "the file is damaged, or another kind of file"),
        (b"".join(sealed("masq.state", [])), "it is a file of another kind, 'masq.state'"),
        (
            b"%08x %b\n" % (crc32(LATER), LATER),
            "another version of this service",
        ),
        (written(node="n2"), "the file is of node 'n2', and this is node 'n1'"),
    ],
)
def test_what_is_not_ours_says_what_it_is(data: bytes, reason: str) -> None:
    with pytest.raises(UnreadableState, match=reason):
        decode("dataplane", data, "n1")


def test_a_table_that_was_never_complete_is_none() -> None:
    memory = decode("dataplane", b"".join(encode("dataplane", "n1", None, (), [])), "n1")
    with pytest.raises(UnreadableState, match="no complete lease table"):
        memory.table()
