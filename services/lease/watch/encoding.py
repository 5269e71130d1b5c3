"""Steps as bytes that are made once and sent to every watcher.

The trick: a serialised protobuf message is the concatenation of its fields, and concatenating two messages appends
their repeated fields to each other. So a Change, serialised as a message that holds nothing else, is a piece from
which any step that contains it is joined: a snapshot of 10,000 leases is joined from pieces that were made when the
leases changed, not from 10,000 messages built again for each watcher.

The order of the pieces is the order of the changes. A field that may come once only (`network`, `cursor`, ...) must
be in one piece only: two would be merged.
"""

from typing import Final

from flannelette.services.core.leases.table import Step
from flannelette.services.runtime.lease.wire import change_to_bytes, step_to_bytes

MOST_CHANGES: Final = 500
"""In one message, as lease.proto promises."""
MOST_BYTES: Final = 1 << 16
"""In one message, unless a single change is longer: what a reader that does not read keeps in our memory."""

encode: Final = step_to_bytes
"""The step as it goes over the wire; a piece, if another follows it in one message."""
encode_change: Final = change_to_bytes
"""The piece of one change."""
RESET: Final = encode(Step(reset=True))
SYNCED: Final = encode(Step(synced=True))
