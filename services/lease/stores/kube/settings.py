"""The settings of the Kubernetes store: the way to the API server, and the names of flannel's annotations."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from flannelette.services.core.errors import Misconfigured
from flannelette.services.core.family import IPV4, Family
from flannelette.services.runtime.os.files import why_unreadable

DEFAULT_PREFIX: Final = "flannel.alpha.coreos.com"
_LABEL: Final = "[a-z0-9]([a-z0-9-]*[a-z0-9])?"
_PREFIX: Final = re.compile(rf"{_LABEL}(\.{_LABEL})+/([a-z0-9_-]+-)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class FamilyKeys:
    """The annotations of one address family."""

    public: str
    """The address that peers send to."""
    data: str
    """The backend data, as JSON text."""
    overwrite: str
    """The operator's: what to publish whatever the node finds out."""
    chosen: str
    """The operator's: the node's address, like `--public-ip`."""


@dataclass(frozen=True, slots=True)
class Annotations:
    """Every annotation that flannel reads or writes, by what it is for. Made by `annotations`."""

    managed: str
    """`true`: flannel runs on this node. `false`: it did, and gave its lease back."""
    backend_type: str
    """flannel's BackendType; empty for udp and alloc."""
    ipv4: FamilyKeys
    ipv6: FamilyKeys
    prefix: str
    """What all of them start with."""
    claiming: frozenset[str]
    """Annotations by which a node claims something; the operator's are none of them."""

    def of(self, family: Family) -> FamilyKeys:
        """Returns the keys of one family."""
        return self.ipv4 if family is IPV4 else self.ipv6


def annotations(prefix: str = DEFAULT_PREFIX) -> Annotations:
    """The names under `--kube-annotation-prefix`, by flannel's rules. Raises Misconfigured for one that breaks them.

    `flannel.alpha.coreos.com` gives `flannel.alpha.coreos.com/public-ip`, `example.com/net` gives
    `example.com/net-public-ip`.
    """
    start = prefix
    if "/" not in start:
        start += "/"
    if not start.endswith(("/", "-")):
        start += "-"
    if start.count("/") > 1 or not _PREFIX.fullmatch(start):
        raise Misconfigured(
            f"--kube-annotation-prefix is {prefix!r}: write a lower-case domain with at least one dot, then at most "
            f"one slash and a name of a-z, 0-9, - and _, for instance {DEFAULT_PREFIX} or example.com/net"
        )

    def keys(version: str) -> FamilyKeys:
        address = f"public-ip{version}"
        return FamilyKeys(
            f"{start}{address}",
            f"{start}backend-{version}{'-' if version else ''}data",
            f"{start}{address}-overwrite",
            f"{start}node-{address}",
        )

    managed, backend_type, ipv4, ipv6 = f"{start}kube-subnet-manager", f"{start}backend-type", keys(""), keys("v6")
    claiming = frozenset({managed, backend_type, ipv4.public, ipv4.data, ipv6.public, ipv6.data})
    return Annotations(managed, backend_type, ipv4, ipv6, start, claiming)


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
    """File with flannel's network configuration."""
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
    """URL of the API server; empty: the kubeconfig's."""
    kubeconfig: str = ""
    """A kubeconfig file; empty: none."""
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
