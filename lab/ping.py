"""`make ping TO=ADDRESS`: three pings from the namespace that this runs in, for machines without a ping."""

import asyncio
import sys
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Final

from lab.netns import NetworkNamespace
from lab.pings import Pinger
from lab.topology import Address

_PINGS: Final = 3
_SECONDS: Final = 3.0
"""Seconds until an answer counts as lost."""
_HERE: Final = NetworkNamespace("/proc/self/ns/net")


async def ping(target: Address) -> int:
    """Prints a line for each ping. 0: there was an answer. 1: there was none."""
    answered = 0
    with Pinger(_HERE, target.version) as pinger:
        for _ in range(_PINGS):
            _, seconds = await pinger.ping(target, _SECONDS)
            answered += seconds is not None
            print(f"{target}: " + ("no answer" if seconds is None else f"{seconds * 1000:.3f} ms"), flush=True)
    return 0 if answered else 1


def main(arguments: Sequence[str]) -> int:
    """2: that is not one address."""
    try:
        (text,) = arguments
        target = ip_address(text)
    except ValueError:
        print("ping: say which address: make ping TO=10.5.1.2", file=sys.stderr)
        return 2
    return asyncio.run(ping(target))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
