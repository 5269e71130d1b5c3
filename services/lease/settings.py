"""The flags of flannelette-lease."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from services.core.errors import Misconfigured
from services.runtime.options import ProcessSettings
from services.runtime.settings import flag

IN_MEMORY: Final = "memory"
_STORES: Final = frozenset({"embedded", "etcd"})
_LATER: Final = frozenset({"kube", "relay"})
_KUBE: Final = "For the Kubernetes store, which is not built yet."


@dataclass(frozen=True, kw_only=True)
class LeaseSettings(ProcessSettings):
    """Names and defaults of flannel's own flags are flannel's.

    Raises Misconfigured when the flags contradict each other or ask for what is not built.
    """

    store: str = flag("embedded", "Where leases are kept: embedded or etcd.")
    central: bool = flag(False, "Serve every node, not only --node. The embedded store is always central.")
    lease_seconds: int = flag(86_400, "How long a lease lives unless it is renewed.")
    net_config_path: Path = flag(
        Path("/etc/kube-flannel/net-conf.json"), "The embedded store's network configuration, flannel's JSON."
    )
    store_file: Path = flag(
        Path("/var/lib/flannelette/leases.db"), "The embedded store's SQLite file; `memory` keeps nothing."
    )
    etcd_endpoints: str = flag(
        "http://127.0.0.1:4001,http://127.0.0.1:2379", "URLs of the etcd members, separated by commas."
    )
    etcd_prefix: str = flag("/coreos.com/network", "Where in etcd flannel's keys are.")
    etcd_keyfile: str = flag("", "PEM file of our key for etcd, with --etcd-certfile.")
    etcd_certfile: str = flag("", "PEM file of our certificate for etcd, with --etcd-keyfile.")
    etcd_cafile: str = flag("", "PEM file of the authorities that sign etcd's certificates.")
    etcd_username: str = flag("", "User to log in to etcd as.")
    etcd_password: str = flag("", "That user's password; better given as FLANNELD_ETCD_PASSWORD.")
    kube_subnet_mgr: bool = flag(False, f"flannel's way to choose the Kubernetes store. {_KUBE}")
    kube_api_url: str = flag("", _KUBE)
    kubeconfig_file: str = flag("", _KUBE)
    kube_annotation_prefix: str = flag("flannel.alpha.coreos.com", _KUBE)
    set_node_network_unavailable: bool = flag(True, _KUBE)

    def __post_init__(self) -> None:
        store = "kube" if self.kube_subnet_mgr else self.store
        if store in _LATER:
            flag_given = "--kube-subnet-mgr" if self.kube_subnet_mgr else f"--store={store}"
            raise Misconfigured(
                f"{flag_given}: the {store} store is not built yet; use --store=embedded or --store=etcd"
            )
        if store not in _STORES:
            raise Misconfigured(f"--store is {store!r}: use embedded or etcd")
        if store == "embedded" and self.node:
            raise Misconfigured(
                f"--node={self.node} and --store=embedded exclude each other: the embedded store is central, its "
                "file belongs to this one process that serves all nodes; leave --node out, or use --store=etcd"
            )
        if self.central and self.node:
            raise Misconfigured(f"--central and --node={self.node} exclude each other: leave one of them out")
        if self.lease_seconds < 1:
            raise Misconfigured(f"--lease-seconds is {self.lease_seconds}: use 1 or more; flannel's is 86400")
