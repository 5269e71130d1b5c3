"""The flag of an interface by which the kernel forwards IPv4 packets that come in there.

It is set by netlink, for in a container /proc/sys may well be read-only, whatever the process is allowed.
"""

import struct
from os import strerror
from typing import Final

from services.dataplane.netlink import uapi
from services.dataplane.netlink.transport import AnswersLost, RawTransport

_IFLA_AF_SPEC: Final = 26
_IFLA_INET_CONF: Final = 1
_IPV4_DEVCONF_FORWARDING: Final = 1


async def set_forwarding(index: int) -> None:
    """Sets it. Raises OSError with the kernel's reason."""
    flag = _attribute(_IPV4_DEVCONF_FORWARDING, struct.pack("=I", 1))
    spec = _attribute(_IFLA_AF_SPEC, _attribute(uapi.AF_INET, _attribute(_IFLA_INET_CONF, flag)))
    body = struct.pack("=BxHiII", 0, 0, index, 0, 0) + spec
    transport = RawTransport()
    try:
        number = transport.reserve(1)
        flags = uapi.NLM_F_REQUEST | uapi.NLM_F_ACK
        header = struct.pack("=IHHII", 16 + len(body), uapi.RTM_SETLINK, flags, number, 0)
        refused = await transport.exchange(header + body, number, number)
    except AnswersLost:
        return  # the next comparison tells
    finally:
        transport.close()
    if number in refused:
        raise OSError(refused[number].error, strerror(refused[number].error))


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value
