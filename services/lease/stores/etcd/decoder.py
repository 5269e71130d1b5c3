"""From keys and values to leases and holders: each version of a key is parsed once."""

from collections.abc import Collection, Iterable
from typing import NamedTuple

from services.core.errors import InvalidInput
from services.core.flannel import parse_lease
from services.core.lease import Lease
from services.lease.stores.etcd.holders import Holder, parse_holder
from services.lease.stores.etcd.keyspace import Keyspace, Kind
from services.lease.stores.etcd.records import Item


class Known(NamedTuple):
    """One version of a key, and what it means."""

    item: Item
    kind: Kind
    name: str
    value: Lease | Holder | None
    """The lease (`node` not known yet) or the holder; None: it is neither, or does not parse."""
    error: str
    """Why it does not parse, naming the key."""


class Decoder:
    """A memory of what was parsed, shared by the watch and every decision; bounded by what etcd holds."""

    def __init__(self) -> None:
        self._known: dict[bytes, Known] = {}

    def read(self, keyspace: Keyspace, item: Item) -> Known:
        """What the key means."""
        known = self._known.get(item.key)
        if known is None or known.item != item:
            known = self._known[item.key] = _parse(item, *keyspace.classify(item.key))
        return known

    def read_all(self, keyspace: Keyspace, items: Iterable[Item]) -> list[Known]:
        """What these keys mean."""
        return [self.read(keyspace, item) for item in items]

    def lease(self, name: str, item: Item) -> Lease:
        """The lease in a subnet key, `node` not known yet. Raises InvalidInput, naming the key."""
        value = self._value(item, Kind.SUBNET, name)
        assert isinstance(value, Lease)  # noqa: S101 - what else is in a subnet key
        return value

    def holder(self, name: str, item: Item) -> Holder:
        """The holder in a holder key. Raises InvalidInput, naming the key."""
        value = self._value(item, Kind.HOLDER, name)
        assert isinstance(value, Holder)  # noqa: S101 - what else is in a holder key
        return value

    def forget(self, key: bytes) -> None:
        """The key is gone."""
        self._known.pop(key, None)

    def forget_all_but(self, listed: Collection[Known]) -> None:
        """Other keys are gone."""
        if len(self._known) > len(listed):  # what is listed was read
            keys = {known.item.key for known in listed}
            for key in [key for key in self._known if key not in keys]:
                del self._known[key]

    def _value(self, item: Item, kind: Kind, name: str) -> Lease | Holder | None:
        known = self._known.get(item.key)
        if known is None or known.item != item:
            known = self._known[item.key] = _parse(item, kind, name)
        if known.error:
            raise InvalidInput(known.error)
        return known.value


def _parse(item: Item, kind: Kind, name: str) -> Known:
    value: Lease | Holder | None = None
    try:
        if kind is Kind.SUBNET:
            value = parse_lease(name, item.value, reserved=item.etcd_lease == 0, claim_order=item.created)
        elif kind is Kind.HOLDER:
            value = parse_holder(name, item.value)
    except InvalidInput as error:
        return Known(item, kind, name, None, str(error))
    return Known(item, kind, name, value, "")
