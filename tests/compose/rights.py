"""What each container of the lab may do at most, and what the engine says that it may."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Rights:
    """As docker writes them."""

    user: str
    capabilities: frozenset[str] = frozenset()


_LISTED: Final = {
    "etcd": Rights("10001:10001"),
    "lease": Rights("10001:10001"),
    "outside": Rights("10001:10001"),
    "cloud": Rights("10001:10001"),
    "dataplane": Rights("0:10001", frozenset({"NET_ADMIN", "NET_RAW"})),
    "charon": Rights("0:10001", frozenset({"NET_ADMIN", "NET_BIND_SERVICE"})),
    "masq": Rights("0:10001", frozenset({"NET_ADMIN", "NET_RAW"})),
    "host": Rights("0:10001", frozenset({"NET_ADMIN"})),
    "pod": Rights("0:10001", frozenset({"NET_ADMIN"})),
}


def listed(service: str) -> Rights:
    """The most that this service may have. KeyError: it is not listed."""
    if service.startswith("pod"):
        return _LISTED["pod"]
    host, _, name = service.rpartition("-")
    return _LISTED[name if host or name in _LISTED else "host"]


def excess(service: str, inspected: dict[str, Any], status: str, devices: Collection[str] = ()) -> list[str]:
    """What the container has beyond its list, one sentence each. `status` is /proc/PID/status of its process.

    `devices` are those of the machine that it may have in this lab.
    """
    rights, host = listed(service), inspected["HostConfig"]
    added = {name.removeprefix("CAP_") for name in host["CapAdd"] or ()}
    found = {
        f"user {inspected['Config']['User']!r}": inspected["Config"]["User"] == rights.user,
        f"capabilities {sorted(added)}": added <= rights.capabilities,
        "it keeps capabilities of docker's own choice": host["CapDrop"] == ["ALL"],
        "it is privileged": not host["Privileged"],
        "its root file system is writable": host["ReadonlyRootfs"],
        "it may gain privileges": any(option.startswith("no-new-privileges") for option in host["SecurityOpt"] or ()),
        "it has devices": {each["PathOnHost"] for each in host["Devices"] or ()} <= set(devices),
        "it shares the machine's processes": host["PidMode"] == "" and host["IpcMode"] in ("private", "shareable"),
        "it is in the machine's network": host["NetworkMode"] != "host",
        f"bind mounts {host['Binds']}": all(m["RW"] is False or m["Type"] == "volume" for m in inspected["Mounts"]),
        "its process has more capabilities than it was given": _mask(status) & ~_bits(rights.capabilities) == 0,
        "its process may gain privileges": "NoNewPrivs:\t1" in status,
    }
    return [f"{service}: {what}" for what, is_within in found.items() if not is_within]


_BITS: Final = {"NET_BIND_SERVICE": 10, "NET_ADMIN": 12, "NET_RAW": 13}
"""Of capabilities(7)."""


def _bits(capabilities: frozenset[str]) -> int:
    return sum(1 << _BITS[name] for name in capabilities)


def _mask(status: str) -> int:
    """Of the bounding set, which is what any process in the container can have at most."""
    return next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapBnd:"))
