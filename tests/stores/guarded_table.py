"""A store, the guard before it, and the table behind."""

from collections.abc import Sequence
from typing import Any

from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.leases.table import Change, Removed, Upserted
from flannelette.services.lease.admission import WINDOW, MassRemovalGuard
from flannelette.services.lease.stores.store import Changed, Snapshot
from tests.examples.leases import NETWORK, by_name, make_lease

SHARE = 0.5


class World:
    """A store, the guard before it, and the table behind."""

    def __init__(self, leases: int = 0, share: float = SHARE) -> None:
        self.guard = MassRemovalGuard(share)
        self.store: dict[str, Lease] = {}
        self.table: dict[str, Lease] = {}
        self.now = 100.0
        self.network = NETWORK
        for number in range(1, leases + 1):
            self.change(Upserted(make_lease(number)))

    def change(self, *changes: Change) -> set[str]:
        """Happens in the store and is told; returns what left the table."""
        fold(self.store, changes)
        return self.tell(Changed(changes))

    def release(self, *numbers: int) -> set[str]:
        """Somebody asks a lease service to remove these."""
        changes = gone(*numbers)
        fold(self.store, changes)
        return self.tell(Changed(tuple(changes), released=frozenset(map(name, numbers))))

    def relist(self, *leases: Lease, is_other_history: bool = False) -> set[str]:
        self.store = by_name(*leases)
        return self.tell(Snapshot(dict(self.store), NETWORK, is_other_history=is_other_history))

    def tells(self, *changes: Change, **more: Any) -> set[str]:
        """The store tells this, whatever it holds; returns what left the table."""
        return self.tell(Changed(changes, **more))

    def tell(self, event: Snapshot | Changed) -> set[str]:
        before = set(self.table)
        passed = self.guard.take(event, dict(self.table), self.now)
        if isinstance(passed, Snapshot):
            self.table = dict(passed.leases)
        else:
            fold(self.table, passed.changes)
        self.network = passed.network or self.network
        return before - set(self.table)

    def confirm(self, asked_at: float | None = None) -> None:
        fold(self.table, self.guard.confirm(self.store.keys(), self.now if asked_at is None else asked_at))

    def pass_window(self) -> None:
        """So much time passes that removals before it and after it are not counted together."""
        self.now += WINDOW

    @property
    def held(self) -> set[str]:
        return set(self.guard.held)


def fold(table: dict[str, Lease], changes: Sequence[Change]) -> None:
    for change in changes:
        if isinstance(change, Upserted):
            table[change.lease.name] = change.lease
        else:
            table.pop(change.name, None)


def name(number: int) -> str:
    return make_lease(number).name


def gone(*numbers: int) -> list[Change]:
    return [Removed(name(number)) for number in numbers]
