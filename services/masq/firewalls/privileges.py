"""What this process may do."""

from pathlib import Path
from typing import Final

_NEEDED: Final = {"CAP_NET_ADMIN": 12, "CAP_NET_RAW": 13}
"""Of capabilities(7), with their bit numbers."""


def missing_capabilities(status: str | None = None) -> list[str]:
    """Which of the capabilities that legacy iptables needs are not effective; `status` as in /proc/self/status."""
    text = Path("/proc/thread-self/status").read_text() if status is None else status
    line = next(line for line in text.splitlines() if line.startswith("CapEff:"))
    effective = int(line.split()[1], 16)
    return [name for name, bit in _NEEDED.items() if not effective >> bit & 1]
