"""How the journal of the lease service sums up what happens to many nodes at once."""

from flannelette.services.lease.events import LeaseEventKind, LeaseJournal
from flannelette.services.runtime.events import Subject


async def test_many_nodes_at_once_are_a_few_events_and_none_is_left_out() -> None:
    now = [0.0]
    journal = LeaseJournal(timer=lambda: now[0])
    for second in range(2):
        now[0] = float(second)
        for number in range(1000):
            subject = Subject("", f"n{number}")
            journal.note_one(LeaseEventKind.NODE_CONNECTED, subject, lambda: ("node connected", ""))
    journal.flush()
    entries, _ = journal.after(0)
    assert [entry.event.subject_count for entry in entries] == [*([1] * 8), 992, *([1] * 8), 992]
    assert entries[8].event.what.startswith("992 more nodes connected: n8, n9, ")
    assert entries[8].event.concerns("n999"), "it may"
