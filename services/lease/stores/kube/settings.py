"""Where the Kubernetes API is and what to keep there: settings, checked before anything is opened."""

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from services.core.errors import Misconfigured
from services.lease.stores.kube.annotations import Annotations, annotations

DEFAULT_NETWORK_FILE = Path("/etc/kube-flannel/net-conf.json")


@dataclass(frozen=True, slots=True)
class KubeSettings:
    """flannel's `--kube-*` flags and their kin. Construction raises Misconfigured, naming the flag."""

    api_url: str = ""
    """URL of the API server; it wins over the kubeconfig's. Empty: the kubeconfig's, or the pod's."""
    kubeconfig: str = ""
    """A kubeconfig file; empty: the service account of the pod that we run in."""
    annotations: Annotations = field(default_factory=annotations)
    """What flannel's annotations are called."""
    network_file: Path = DEFAULT_NETWORK_FILE
    """flannel's network configuration."""
    sets_condition: bool = True
    """Whether a node that works gets the condition NetworkUnavailable=False."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "api_url", self.api_url.rstrip("/"))
        if not self.api_url:
            return
        url = urlsplit(self.api_url)
        if url.scheme not in ("http", "https") or not url.netloc:
            raise Misconfigured(
                f"--kube-api-url is {self.api_url!r}: write for instance https://10.96.0.1:443, or leave it out"
            )
