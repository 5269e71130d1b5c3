"""What is wanted in the kernel: counted."""

from hypothesis import given
from hypothesis import strategies as st

from services.dataplane.netlink.objects import FdbEntry, KernelObject, Neighbour
from services.dataplane.stock import Stock

MACS = [bytes([2, 0, 0, 0, 0, number]) for number in range(3)]
ENDS = [bytes([10, 99, 0, number]) for number in range(3)]
entries = st.sampled_from([FdbEntry(mac, end, 7) for mac in MACS for end in ENDS])
neighbours = st.sampled_from([Neighbour(end, MACS[0], 2, 7) for end in ENDS])
needs = st.lists(st.frozensets(entries | neighbours, max_size=3), max_size=5)


@given(needs, needs, st.data())
def test_what_comes_and_goes_ends_as_if_made_at_once(
    first: list[frozenset[KernelObject]], later: list[frozenset[KernelObject]], data: st.DataObject
) -> None:
    stock = Stock(first)
    for each in later:
        stock.add(each)
    kept = [*first, *later]
    for each in data.draw(st.permutations(kept))[: len(kept) // 2]:
        stock.remove(each)
        kept.remove(each)
    assert stock.wanted == set().union(*kept)
    for each in kept:
        stock.remove(each)
    assert stock.wanted == set()


def test_an_object_that_two_need_is_there_until_neither_does() -> None:
    shared = frozenset([FdbEntry(MACS[0], ENDS[0], 7)])
    stock = Stock([shared, shared])
    stock.remove(shared)
    assert stock.wanted == shared
    stock.remove(shared)
    assert stock.wanted == set()
