"""The note that says which leases were removed on purpose. Pure.

Whoever deletes subnet keys through a lease service writes `<prefix>/released` in the same transaction. So every lease
service of this etcd tells a node that gives its lease back, or an operator who takes some back, from an accident.
There is one such key; it says what was removed last.
"""

import json
from dataclasses import replace

from services.lease.stores.etcd.keyspace import Keyspace, Kind
from services.lease.stores.etcd.records import Delete, Put, Transaction


def note_released(keyspace: Keyspace, transaction: Transaction) -> Transaction:
    """The transaction, and with it the note if it deletes leases."""
    deleted = (keyspace.classify(write.key) for write in transaction.writes if isinstance(write, Delete))
    names = sorted(name for kind, name in deleted if kind is Kind.SUBNET)
    if not names:
        return transaction
    note = Put(keyspace.released, json.dumps({"leases": names}, separators=(",", ":")).encode())
    return replace(transaction, writes=(*transaction.writes, note))


def read_released(value: bytes) -> frozenset[str]:
    """The names in a note; what is none says nothing."""
    try:
        note = json.loads(value)
    except (ValueError, RecursionError):
        return frozenset()
    names = note.get("leases") if isinstance(note, dict) else None
    return frozenset(name for name in names if isinstance(name, str)) if isinstance(names, list) else frozenset()
