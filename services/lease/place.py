"""Where one VIEW_ALL watcher is, and what it gets next. No IO."""

from services.lease import metrics
from services.lease.broker import Broker


class Place:
    """A watcher's way through the table: a snapshot, if it needs one, then the changes.

    It keeps a number and a name, no matter how far behind it is. A snapshot is taken from the table as it is when
    each message is made; before it is complete, what has changed since its first message is sent after it. So it ends
    at one moment of the table, that of its cursor, and a table that changes all the time holds no snapshot up.
    """

    def __init__(self, broker: Broker, cursor: str) -> None:
        self._broker = broker
        self._position = broker.history.position(cursor)
        """The entry of the history up to which it has everything; None: it needs a snapshot."""
        self._after: str | None = None
        """While the leases of a snapshot are sent: the last one; None before and after."""
        self._staged = False
        """The snapshot that has begun is not complete yet."""
        if self._position is None:
            ours = cursor.startswith(f"{broker.history.epoch}:")
            count_reset("compacted" if ours else "other_epoch" if cursor else "no_cursor")

    @property
    def is_resumed(self) -> bool:
        """Whether the cursor was one to go on from."""
        return self._position is not None

    @property
    def is_behind(self) -> bool:
        """Whether a change waits to be told that is no part of a snapshot."""
        is_following = self._position is not None and self._after is None and not self._staged
        return is_following and self._position != self._broker.history.last

    def next_message(self) -> bytes | None:
        """What to send next, the same bytes for all who are at the same place; None: it has everything."""
        history = self._broker.history
        if self._position is None:
            self._position = history.last
            return self._part_of_snapshot(self._position)
        if self._after is not None:
            return self._part_of_snapshot(self._position)
        if self._position == history.last:
            return None
        update = history.since(self._position)
        if update is not None and self._staged and update.position != history.last:
            update = history.since(self._position, staged=True)
        if update is None:
            count_reset("too_slow")
            self._position = None
            return self.next_message()
        self._position = update.position
        self._staged = self._staged and update.position != history.last
        return update.message

    def _part_of_snapshot(self, begun: int) -> bytes:
        part = self._broker.snapshot(self._after, begun)
        self._after = None if part.ends else part.last
        self._staged = not part.ends or begun != self._broker.history.last
        return part.body


def count_reset(reason: str) -> None:
    """A snapshot is sent, and this is why."""
    metrics.RESETS.labels(reason).inc()
