"""What is wanted in the kernel, by whom how often, and who wants a place that another one wants."""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable
from itertools import chain

from services.dataplane.netlink.objects import FDB_ENTRY, KernelObject


class Stock:
    """Made from what each peer needs. Two leases of one node share its forwarding entry, which is wanted once."""

    def __init__(self, needs: Collection[Collection[KernelObject]] = ()) -> None:
        self.wanted: set[KernelObject] = set().union(*needs)
        self._others: Counter[KernelObject] = Counter()
        """How many more than one need an object, where any do."""
        self._places: Counter[Hashable] = Counter(item.slot for item in self.wanted if item.kind == FDB_ENTRY)
        """How many objects want a place in the kernel, which has room for one. Two leases may have one MAC; routes
        and neighbours of two peers never have one place, for their subnets do not overlap (see `rivals`)."""
        if sum(map(len, needs)) > len(self.wanted):
            self._others = Counter(chain.from_iterable(needs)) - Counter(self.wanted)

    def add(self, objects: Iterable[KernelObject]) -> bool:
        """These are needed once more. Whether one of them wants the place of another."""
        is_rival = False
        for item in objects:
            if item in self.wanted:
                self._others[item] += 1
                continue
            self.wanted.add(item)
            if item.kind == FDB_ENTRY:
                self._places[item.slot] += 1
                is_rival |= self._places[item.slot] > 1
        return is_rival

    def remove(self, objects: Iterable[KernelObject]) -> bool:
        """These are needed once less. Whether one of them wanted the place of another."""
        was_rival = False
        for item in objects:
            if self._others.get(item):
                self._others[item] -= 1
                continue
            self.wanted.remove(item)
            if item.kind == FDB_ENTRY:
                was_rival |= self._places[item.slot] > 1
                self._places[item.slot] -= 1
                if not self._places[item.slot]:
                    del self._places[item.slot]
        return was_rival
