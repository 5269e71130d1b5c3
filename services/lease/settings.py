"""The flags of flannelette-lease."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from flannelette.services.core.errors import Misconfigured
from flannelette.services.core.limits import LONGEST
from flannelette.services.lease.imports.policy import Export, Import, parse_export, parse_imports
from flannelette.services.runtime.networks import network_name, only_one
from flannelette.services.runtime.process.settings import ProcessSettings, flag, given

IN_MEMORY: Final = "memory"
_FLAGS: Final[Mapping[str, tuple[str, ...]]] = {
    "embedded": ("store_file",),
    "etcd": tuple(f"etcd_{name}" for name in "endpoints prefix keyfile certfile cafile username password".split()),
    "kube": ("kube_api_url", "kubeconfig_file", "kube_annotation_prefix"),
    "relay": ("upstream",),
}
"""The settings that only one store has, by store: who gives one of them means that store."""


@dataclass(frozen=True, kw_only=True)
class LeaseSettings(ProcessSettings):
    """Names and defaults of flannel's own flags are flannel's.

    Raises Misconfigured when the flags contradict each other or ask for a store that this version does not have.
    """

    network: tuple[str, ...] = flag(
        (), "Name of the network, where the node has several: the socket is lease-NAME.sock, and files likewise."
    )
    store: str = flag(
        "",
        "Store of the leases: embedded, etcd, kube, or relay (another lease service). Default: the store to which "
        "the other flags belong, else embedded.",
    )
    central: bool = flag(False, "Serve every node, not only --node. The embedded store is always central.")
    lease_seconds: int = flag(86_400, "Seconds until a lease expires unless it is renewed.")
    guard_share: int = flag(
        50,
        "Percentage of the leases that may vanish from the store within 2 s; if more do, their removal is held back. "
        "A single lease is held back only while others are, and one that its node or an operator releases never; 100 "
        "switches the guard off.",
    )
    guard_seconds: float = flag(30, "Seconds for which removals are held back, before a second listing of the store.")
    net_config_path: Path = flag(
        Path("/etc/kube-flannel/net-conf.json"),
        "The network configuration for the embedded and the Kubernetes store, flannel's JSON.",
    )
    store_file: Path = flag(
        Path("/var/lib/flannelette/leases.db"), "The embedded store's SQLite file; `memory` keeps nothing."
    )
    upstream: str = flag("", "For --store=relay: the lease service above, unix:PATH or HOST:PORT.")
    import_: tuple[str, ...] = flag(
        (),
        "Another cluster whose leases are imported: NAME=ADDRESS,allow=CIDR[,allow=CIDR...], ADDRESS of a lease "
        "service there (HOST:PORT or unix:PATH), and where its leases may lie. With ,cert=FILE,key=FILE,ca=FILE and "
        "perhaps ,server-name=NAME the connection has its own certificates; default: those of the --tls flags. May "
        "be repeated.",
        name="import",
    )
    export: tuple[str, ...] = flag(
        (),
        "Network whose leases lease services of other clusters see; may be repeated; `none` shows nothing. Default: "
        "all leases of this cluster. What is imported is never shown.",
    )
    etcd_endpoints: str = flag(
        "http://127.0.0.1:4001,http://127.0.0.1:2379", "URLs of the etcd members, separated by commas."
    )
    etcd_prefix: str = flag("/coreos.com/network", "Prefix of flannel's keys in etcd.")
    etcd_keyfile: str = flag("", "PEM file of the client key for etcd, with --etcd-certfile.")
    etcd_certfile: str = flag("", "PEM file of the client certificate for etcd, with --etcd-keyfile.")
    etcd_cafile: str = flag("", "PEM file of the authorities that sign etcd's certificates.")
    etcd_username: str = flag("", "User to log in to etcd as.")
    etcd_password: str = flag("", "Password of that user; prefer the variable FLANNELD_ETCD_PASSWORD.")
    kube_subnet_mgr: bool = flag(False, "The same as --store=kube.")
    kube_api_url: str = flag("", "URL of the Kubernetes API server. Default: the kubeconfig's, else the pod's.")
    kubeconfig_file: str = flag(
        "", "Kubeconfig file for the Kubernetes API. Default: the service account of the pod."
    )
    kube_annotation_prefix: str = flag(
        "flannel.alpha.coreos.com", "Prefix of the annotations of nodes, such as example.com/net."
    )
    set_node_network_unavailable: bool = flag(
        True, "Set the condition NetworkUnavailable=False of a node once its dataplane is ready."
    )

    given: Mapping[str, str] = given()

    def __post_init__(self) -> None:
        if self.network:
            network_name(only_one(self.network))
        store = "kube" if self.kube_subnet_mgr else self.store or self._implied_store()  # flannel has no --store
        if store not in _FLAGS:
            raise Misconfigured(f"--store is {store!r}: use embedded, etcd, kube or relay")
        if self.store and not self.kube_subnet_mgr:
            self._refuse_flags_of_others(store)
        object.__setattr__(self, "store", store)
        if store == "relay" and not self.upstream:
            raise Misconfigured(
                "--store=relay needs --upstream: the address of the lease service above, unix:PATH or HOST:PORT"
            )
        if store == "relay" and (self.import_ or self.export):
            raise Misconfigured(
                "--import and --export are not for --store=relay: give them to the lease service above"
            )
        _ = self.exports
        if any(each.address in self.listen.split(",") for each in self.imports):
            raise Misconfigured(
                "--import has the address of this lease service itself: give that of another cluster's"
            )
        if store == "embedded" and self.node:
            raise Misconfigured(
                f"--node={self.node} and --store=embedded exclude each other: the embedded store is central, its "
                "file belongs to this one process that serves all nodes; leave --node out, or use --store=etcd"
            )
        if self.central and self.node:
            raise Misconfigured(f"--central and --node={self.node} exclude each other: leave one of them out")
        if not 0 <= self.guard_share <= 100:
            raise Misconfigured(f"--guard-share is {self.guard_share}: use a percentage, 0 to 100")
        if not 0 <= self.guard_seconds < math.inf:
            raise Misconfigured(f"--guard-seconds is {self.guard_seconds}: use 0 or more seconds")
        if not 1 <= self.lease_seconds <= LONGEST:
            raise Misconfigured(f"--lease-seconds is {self.lease_seconds}: use 1 to {LONGEST:g}; flannel's is 86400")

    @property
    def imports(self) -> tuple[Import, ...]:
        """The clusters of --import. Raises Misconfigured."""
        return parse_imports(self.import_)

    @property
    def exports(self) -> Export:
        """What --export shows. Raises Misconfigured."""
        return parse_export(self.export)

    @property
    def served_network(self) -> str:
        """See ProcessSettings."""
        return only_one(self.network)

    def _implied_store(self) -> str:
        """The store whose flags were given: those of the command line decide, without any the variables do."""
        for is_flag in (True, False):
            found = {
                store: self.given[name]
                for store, names in _FLAGS.items()
                for name in names
                if name in self.given and self.given[name].startswith("--") is is_flag
            }
            if len(found) > 1:
                (store, source), (other, other_source), *_ = found.items()
                raise Misconfigured(
                    f"{source} is for --store={store} and {other_source} for --store={other}: leave one of them out"
                )
            if found:
                return next(iter(found))
        return "embedded"

    def _refuse_flags_of_others(self, store: str) -> None:
        """Raises Misconfigured for a flag of another store. A variable may be there for other services."""
        for other, names in _FLAGS.items():
            for name in names:
                source = self.given.get(name, "")
                if other != store and source.startswith("--"):
                    raise Misconfigured(
                        f"{source} is for --store={other} only, and --store is {store}: leave one out"
                    )
