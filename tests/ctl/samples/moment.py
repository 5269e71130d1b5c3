"""When the answers are given."""

from datetime import UTC, datetime, timedelta

from google.protobuf.timestamp_pb2 import Timestamp

NOW = datetime(2026, 5, 4, 12, 0, 0, tzinfo=UTC)


def at(**offset: float) -> Timestamp:
    """This long after NOW."""
    time = Timestamp()
    time.FromDatetime(NOW + timedelta(**offset))
    return time
