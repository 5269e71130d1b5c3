"""The faults of `make chaos`, one row each: what happens, how it ends, and which packets it may cost."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from lab.chaos import limits, processes, tampering
from lab.chaos.certificates import uses_tls
from lab.chaos.processes import Act
from lab.chaos.scene import SERVICES, Hit
from lab.chaos.tampering import typed
from lab.topology import Host

_MINUTE: Final = 60.0
_KERNEL: Final = 15.0
"""Seconds for a repair that takes milliseconds on a machine that has time."""
_STORE: Final = 120.0
"""Seconds for what waits for the next listing of the store, or for a client that tries again ever more seldom."""


class Loses(Enum):
    """The packets that are lost while a fault lasts, until it is repaired, and for a moment longer."""

    NOTHING = "none"
    PEER = "those of the host with one peer"
    HOST = "those of the host"


@dataclass(frozen=True, slots=True)
class Fault:
    """A row of the table."""

    does: str
    undone: str
    act: Act
    loses: Loses = Loses.NOTHING
    within: float = _MINUTE
    """Seconds after its end in which all must be right again."""
    lasts: tuple[float, float] = (0.0, 0.0)
    """Seconds, at least and at most."""
    backends: tuple[str, ...] = ()
    """Backends for which it happens; empty: all."""
    is_store: bool = False
    """The store is hit, not the host alone."""
    is_shared: bool = False
    """Other hosts may feel it."""
    ends_services: bool = False
    """Services of the host start again, and it is never done to the last host, whose services run all the time."""
    needs_tls: bool = False
    """The fault happens to hosts with TLS between their services alone."""
    needs_legacy: bool = False
    """The fault happens to hosts with legacy iptables alone."""
    shows: str = ""
    """What is seen of it while it lasts, besides lost packets."""
    shows_always: bool = True
    """Else it may be missed: the service may need nothing meanwhile, or have no room for a line in its log."""
    leaves: Mapping[str, int] = field(default_factory=dict)
    """MiB of memory that a service of a kind may keep after its first one, such as the heap that was large."""

    @property
    def is_alone(self) -> bool:
        """Whether nothing else happens meanwhile."""
        return self.is_store or self.is_shared

    def concerns(self, backend: str) -> bool:
        """Whether there is anything to break with this backend."""
        return not self.backends or backend in self.backends

    def may_hit(self, host: Host, *, is_last: bool) -> bool:
        """Whether it can happen there."""
        if uses_tls(host) and self.needs_legacy:
            return False
        return not (self.ends_services and is_last) and (uses_tls(host) or not self.needs_tls)

    def allows(self, hit: Hit, source: str, target: str) -> bool:
        """Whether it may cost a packet from the pod of this host to that of the other, or to the outside."""
        ends, host = {source, target}, hit.host.name
        if self.loses is Loses.PEER:
            return ends == {host, hit.peer.name}
        return self.loses is Loses.HOST and host in ends


_KILLS: Final = {
    f"{name}-killed": Fault(
        f"`kill -9` of {words}",
        "started again after a second",
        processes.killed(name),
        ends_services=True,
    )
    for name, words in zip(SERVICES, ("the lease service", "the dataplane", "masq"), strict=True)
}
_FREEZES: Final = {
    f"{name}-frozen": Fault(f"SIGSTOP of {words}", "SIGCONT after 2 to 10 s", processes.frozen(name), lasts=(2, 10))
    for name, words in zip(SERVICES, ("the lease service", "the dataplane", "masq"), strict=True)
}
_VXLAN: Final = ("vxlan",)
CHANGE: Final = "backend-changed"
"""What happens between the times of two backends, and not by chance."""
FAULTS: Final[Mapping[str, Fault]] = {
    **_KILLS,
    "all-killed": Fault(
        "`kill -9` of all three", "started again after a second", processes.all_killed, ends_services=True
    ),
    **_FREEZES,
    "clock-stepped": Fault(
        "the services' wall clock steps by up to two days, or twenty years, either way",
        "it steps back after 2 to 10 s",
        processes.clock_stepped,
        lasts=(2, 10),
    ),
    "disk-full": Fault(
        "the disk with state, logs and sockets is full, and a service is killed",
        "room again after 5 to 10 s",
        limits.disk_full,
        shows="`No space left on device` in a log",
        shows_always=False,
        lasts=(5, 10),
        ends_services=True,
    ),
    "no-descriptors": Fault(
        "a service gets no descriptor any more (`prlimit`)",
        "the limit is lifted after 3 to 10 s",
        limits.no_descriptors,
        shows="a connection has no answer",
        lasts=(3, 10),
        ends_services=True,
    ),
    "no-memory": Fault(
        "a service gets 4 MiB more, and then none (`prlimit`), under large calls",
        "the limit is lifted after 3 to 10 s",
        limits.no_memory,
        shows="the service ends, or does not answer a call",
        shows_always=False,
        lasts=(3, 10),
        ends_services=True,
    ),
    "certificates-expired": Fault(
        "the certificates of the services run out, and then the lease service is killed",
        "there are new ones after 3 to 10 s",
        processes.certificates_expired,
        shows="`certificate has expired`, says a client",
        within=_STORE,
        lasts=(3, 10),
        ends_services=True,
        needs_tls=True,
    ),
    "etcd-killed": Fault(
        "`kill -9` of etcd", "started again after a second", processes.store_killed, within=_STORE, is_store=True
    ),
    "etcd-frozen": Fault(
        "SIGSTOP of etcd",
        "SIGCONT after 2 to 15 s",
        processes.store_frozen,
        within=_STORE,
        lasts=(2, 15),
        is_store=True,
    ),
    "etcd-slow": Fault(
        "etcd has a tenth of its time",
        "all of it after 3 to 10 s",
        processes.store_slow,
        within=_STORE,
        lasts=(3, 10),
        is_store=True,
    ),
    "etcd-full": Fault(
        "etcd is at its quota and refuses writes (`NOSPACE`)",
        "it takes them again after 3 to 10 s",
        processes.store_full,
        within=_STORE,
        lasts=(3, 10),
        is_store=True,
    ),
    "etcd-emptied": Fault(
        "all leases are deleted in etcd, or all keys",
        "by the nodes; the network configuration comes back after 2 to 8 s",
        processes.store_emptied,
        within=_STORE,
        lasts=(2, 8),
        is_store=True,
    ),
    "etcd-compacted": Fault(
        "etcd is killed and compacted while all lease services are stopped",
        "they go on",
        processes.store_compacted,
        within=_STORE,
        is_store=True,
    ),
    CHANGE: Fault(
        "the network configuration gets the other backend",
        "the earlier device goes after 20 s",
        processes.backend_changed,
        within=_STORE,
        is_store=True,
    ),
    "key-overwritten": Fault(
        "the key of the node gets another public address, or no JSON",
        "by the node",
        processes.key_overwritten,
        within=_STORE,
        is_store=True,
    ),
    "key-deleted": Fault(
        "the key of the node is deleted",
        "by the node",
        processes.key_deleted,
        Loses.HOST,
        within=_STORE,
        is_store=True,
    ),
    "junk-keys": Fault(
        "100,000 keys among the leases that are none",
        "deleted after 2 s",
        processes.junk,
        within=_STORE,
        lasts=(2, 2),
        is_store=True,
        leaves={"lease": 200},
    ),
    "lease-churn": Fault(
        "10,000 leases of other nodes come and go",
        "the last ones are deleted",
        processes.churn,
        within=_STORE,
        is_store=True,
        leaves={"lease": 50},
    ),
    "route-deleted": Fault(
        "`ip route del` of one peer", "by the dataplane", typed("ip route del {subnet}"), Loses.PEER, _KERNEL
    ),
    "routes-flushed": Fault(
        "`ip route flush proto 77`", "by the dataplane", typed("ip route flush proto 77"), Loses.HOST, _KERNEL
    ),
    "route-taken": Fault(
        "another program replaces the route of one peer",
        "it deletes its own after 1 to 3 s",
        typed("ip route replace blackhole {subnet}", "ip route del blackhole {subnet}"),
        Loses.PEER,
        _KERNEL,
        lasts=(1, 3),
    ),
    "neighbour-deleted": Fault(
        "`ip neigh del` of one peer",
        "by the dataplane",
        typed("ip neigh del {vtep} dev flannel.1"),
        Loses.PEER,
        _KERNEL,
        backends=_VXLAN,
    ),
    "entry-deleted": Fault(
        "`bridge fdb del` of one peer",
        "by the dataplane",
        typed("bridge fdb del {mac} dev flannel.1 dst {public}"),
        Loses.PEER,
        _KERNEL,
        backends=_VXLAN,
    ),
    "device-deleted": Fault(
        "`ip link del flannel.1`",
        "by the dataplane",
        typed("ip link del flannel.1"),
        Loses.HOST,
        _KERNEL,
        backends=_VXLAN,
    ),
    "device-down": Fault(
        "`ip link set flannel.1 down`",
        "by the dataplane",
        typed("ip link set flannel.1 down"),
        Loses.HOST,
        _KERNEL,
        backends=_VXLAN,
    ),
    "address-removed": Fault(
        "`ip addr del` on flannel.1",
        "by the dataplane",
        typed("ip addr del {own_vtep}/32 dev flannel.1"),
        Loses.HOST,
        _KERNEL,
        backends=_VXLAN,
    ),
    "underlay-down": Fault(
        "`ip link set eth0 down`: no underlay, no default route",
        "up again after 1 to 5 s, with the default route",
        typed("ip link set eth0 down", "ip link set eth0 up; ip route replace default via {router}"),
        Loses.HOST,
        _KERNEL,
        lasts=(1, 5),
    ),
    "firewall-flushed": Fault(
        "`nft flush ruleset`, or all of legacy iptables",
        "by masq",
        tampering.firewall_flushed,
        Loses.HOST,
        _KERNEL,
    ),
    "chains-flushed": Fault(
        "`iptables -F` of flannel's chains",
        "by masq",
        typed("{iptables} -F FLANNEL-FWD; {iptables} -t nat -F FLANNEL-POSTRTG"),
        Loses.HOST,
        _KERNEL,
    ),
    "jumps-deleted": Fault(
        "`iptables -F` of FORWARD and POSTROUTING",
        "by masq",
        typed("{iptables} -F FORWARD; {iptables} -t nat -F POSTROUTING"),
        Loses.HOST,
        _KERNEL,
    ),
    "iptables-restore": Fault(
        "`iptables-restore --noflush` of other chains every 100 ms",
        "it stops after 5 s",
        tampering.restored_beside_ours,
        within=_KERNEL,
        lasts=(5, 5),
    ),
    "iptables-reload": Fault(
        "`iptables-restore` of everything, without flannel's rules, every 100 ms",
        "it stops after 5 s; by masq",
        tampering.restored_without_ours,
        Loses.HOST,
        _KERNEL,
        lasts=(5, 5),
    ),
    "xtables-lock": Fault(
        "the lock of iptables is held, and the chain of FORWARD flushed",
        "released after 5 to 10 s; by masq",
        tampering.lock_held,
        Loses.HOST,
        lasts=(5, 10),
        is_shared=True,
        needs_legacy=True,
        shows="no rule comes back",
    ),
}
