"""The settings of the Kubernetes store, and the way to the API server that follows from them.

That is the kubeconfig or URL of the flags, else the service account of our pod.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from flannelette.services.core.errors import Misconfigured
from flannelette.services.lease.stores.kube.annotations import Annotations, annotations
from flannelette.services.runtime.os.unreadable import why_unreadable

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


SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where Kubernetes puts the credentials of a pod."""


@dataclass(frozen=True, slots=True)
class Access:
    """The way in. Files are named, not read: they are rotated while we run."""

    url: str = ""
    """Of the API server; empty: the kubeconfig's."""
    kubeconfig: str = ""
    """Empty: none."""
    ca_file: str = ""
    """PEM of the authorities; empty: the kubeconfig's, else the system's."""
    token_file: str = ""
    """Holds the bearer token; empty: the kubeconfig's credentials, else none."""

    @property
    def name(self) -> str:
        """The cluster's name, for logs and messages."""
        return self.url or f"the cluster of {self.kubeconfig}"


def find_access(
    settings: KubeSettings, environment: Mapping[str, str] = os.environ, service_account: Path = SERVICE_ACCOUNT
) -> Access:
    """Raises Misconfigured when there is none, with what to set.

    With `--kube-api-url` alone the pod's token is shown to that server, if there is one and the URL is https.
    """
    if settings.kubeconfig:
        try:
            with Path(settings.kubeconfig).open(encoding="utf-8"):
                pass
        except OSError as error:
            why = why_unreadable(Path(settings.kubeconfig), error)
            raise Misconfigured(f"--kubeconfig-file {settings.kubeconfig} {why}") from None
        return Access(settings.api_url, settings.kubeconfig)
    token, authorities = service_account / "token", service_account / "ca.crt"
    in_pod = token.is_file() and authorities.is_file()
    if settings.api_url:
        if in_pod and settings.api_url.startswith("https:"):
            return Access(settings.api_url, ca_file=str(authorities), token_file=str(token))
        return Access(settings.api_url)
    host, port = environment.get("KUBERNETES_SERVICE_HOST", ""), environment.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port:
        raise Misconfigured(
            "there is no way to the Kubernetes API: this is no pod (KUBERNETES_SERVICE_HOST and _PORT are not set); "
            "give --kubeconfig-file or --kube-api-url"
        )
    if not in_pod:
        raise Misconfigured(
            f"this pod has no service account: there is no {token} with a ca.crt beside it; set "
            "automountServiceAccountToken, or give --kubeconfig-file"
        )
    where = f"[{host}]" if ":" in host else host
    return Access(f"https://{where}:{port}", ca_file=str(authorities), token_file=str(token))
