"""How gRPC's core reads its sockets. It looks at the environment when imported: lease and dataplane do this before.

Since 1.80 a pool of threads reads, and hands what has come to the thread that wakes asyncio. That thread can still
read by itself, as before: of 3.4 ms from a put in etcd to its route this saves 0.25, and of both services' CPU a
seventh. The names are those of experiments and will go, and a core that does not know one complains on stderr at each
start. So only versions that were looked at are told.
"""

import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Final

_EXPERIMENTS: Final = "-event_engine_client,-event_engine_listener"
_KNOWN: Final = (85,)
"""Of 1.85."""


def configure() -> None:
    """Once for the process; what the environment says already stands."""
    if _minor_version() in _KNOWN:
        os.environ.setdefault("GRPC_EXPERIMENTS", _EXPERIMENTS)


def _minor_version() -> int | None:
    """Of gRPC 1, without importing it, nor what reads the metadata of packages."""
    spec = find_spec("grpc")
    if spec is None or spec.origin is None:
        return None
    try:
        text = Path(spec.origin).with_name("_grpcio_metadata.py").read_text()
    except OSError:
        return None
    found = re.search(r"\b1\.(\d+)\.", text)
    return int(found[1]) if found else None
