"""What is wanted in the kernel, by whom how often."""

from collections import Counter
from collections.abc import Collection, Iterable
from itertools import chain

from services.dataplane.netlink.objects import KernelObject


class Stock:
    """Made from what each peer needs. Two leases of one node share its forwarding entry, which is wanted once.

    No two of these want one place in the kernel: of two leases that claim the same, one needs nothing (see Roster).
    """

    def __init__(self, needs: Collection[Collection[KernelObject]] = ()) -> None:
        self.wanted: set[KernelObject] = set().union(*needs)
        self._others: Counter[KernelObject] = Counter()
        """How many more than one need an object, where any do."""
        if sum(map(len, needs)) > len(self.wanted):
            self._others = Counter(chain.from_iterable(needs)) - Counter(self.wanted)

    def add(self, objects: Iterable[KernelObject]) -> None:
        """These are needed once more."""
        for item in objects:
            if item in self.wanted:
                self._others[item] += 1
            self.wanted.add(item)

    def remove(self, objects: Iterable[KernelObject]) -> None:
        """These are needed once less."""
        for item in objects:
            if self._others.get(item):
                self._others[item] -= 1
            else:
                self.wanted.remove(item)
