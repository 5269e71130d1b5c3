"""The Kubernetes store: a lease is what a Node object says, in flannel's annotations and its podCIDRs."""

from services.lease.stores.kube.settings import KubeSettings
from services.lease.stores.kube.store import KubeStore

__all__ = ["KubeSettings", "KubeStore"]
