"""From keys and values to leases and holders: each version of a key is parsed once."""

from collections.abc import Callable, Iterable, Set
from contextlib import suppress
from typing import TypeVar

from services.core.errors import InvalidInput
from services.core.flannel import parse_lease
from services.core.lease import Lease
from services.lease.stores.etcd.holders import Holder, parse_holder
from services.lease.stores.etcd.keyspace import Keyspace, Kind
from services.lease.stores.etcd.records import Item

Parsed = TypeVar("Parsed", Lease, Holder)


class Decoder:
    """A memory of what was parsed, shared by the watch and every decision; bounded by what etcd holds."""

    def __init__(self) -> None:
        self._parsed: dict[bytes, tuple[Item, Lease | Holder | str]] = {}

    def prepare(self, keyspace: Keyspace, items: Iterable[Item]) -> None:
        """Parses the leases among these now, so that asking for them later is quick."""
        for item in items:
            kind, name = keyspace.classify(item.key)
            if kind is Kind.SUBNET:
                with suppress(InvalidInput):  # told again to whoever asks
                    self.lease(name, item)

    def lease(self, name: str, item: Item) -> Lease:
        """The lease in a subnet key, `node` not known yet. Raises InvalidInput, naming the key."""
        return self._once(item, lambda: parse_lease(name, item.value, reserved=item.etcd_lease == 0))

    def holder(self, name: str, item: Item) -> Holder:
        """The holder in a holder key. Raises InvalidInput, naming the key."""
        return self._once(item, lambda: parse_holder(name, item.value))

    def created(self, key: bytes) -> int:
        """The revision that made the key, as last seen; 0: not known."""
        known = self._parsed.get(key)
        return known[0].created if known else 0

    def forget(self, key: bytes) -> None:
        """The key is gone."""
        self._parsed.pop(key, None)

    def forget_all_but(self, keys: Set[bytes]) -> None:
        """Other keys are gone."""
        for key in self._parsed.keys() - keys:
            del self._parsed[key]

    def _once(self, item: Item, parse: Callable[[], Parsed]) -> Parsed:
        known = self._parsed.get(item.key)
        if known is None or known[0] != item:
            try:
                known = (item, parse())
            except InvalidInput as error:
                known = (item, str(error))
            self._parsed[item.key] = known
        result = known[1]
        if isinstance(result, str):
            raise InvalidInput(result)
        return result  # type: ignore[return-value]  # a key is always parsed by the same function
