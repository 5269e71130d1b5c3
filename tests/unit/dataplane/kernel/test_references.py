"""What is wanted in the kernel: counted."""

from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from flannelette.services.dataplane.kernel.programmer import ObjectRefs
from flannelette.services.dataplane.netlink.objects import FdbEntry, KernelObject, Neighbour

MACS = [bytes([2, 0, 0, 0, 0, number]) for number in range(3)]
ENDS = [bytes([10, 99, 0, number]) for number in range(3)]
entries = st.sampled_from([FdbEntry(mac, end, 7) for mac in MACS for end in ENDS])
neighbours = st.sampled_from([Neighbour(end, MACS[0], 2, 7) for end in ENDS])
needs = st.lists(st.frozensets(entries | neighbours, max_size=3), max_size=5)


@given(needs, needs, st.data())
def test_what_comes_and_goes_ends_as_if_made_at_once(
    first: list[frozenset[KernelObject]], later: list[frozenset[KernelObject]], data: st.DataObject
) -> None:
    refs = ObjectRefs()
    refs.exchange([], chain.from_iterable(first))
    kept = [*first, *later]
    gone = data.draw(st.permutations(first))[: len(first) // 2]
    for each in gone:
        kept.remove(each)
    before = set(refs.desired)
    edit = refs.exchange(chain.from_iterable(gone), chain.from_iterable(later))
    assert refs.desired == set().union(*kept)
    assert (edit.added, edit.removed) == (refs.desired - before, before - refs.desired)
    refs.exchange(chain.from_iterable(kept), [])
    assert refs.desired == set()
