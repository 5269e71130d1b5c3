"""What the Kubernetes store exchanges with the API server, as values: settings, nodes, events, errors, time limits.

`find_access` finds the way to the API server. `read_node`, `read_page` and `read_batch` make nodes of what the server
sends; `away`, `broken` and `refusal` turn what it or the network answers into errors that say what to do.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from datetime import datetime
from pathlib import Path
from sys import intern
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

from flannelette.services.core.conditions import Condition
from flannelette.services.core.errors import Misconfigured, NotYet, Unavailable
from flannelette.services.core.family import IPV4, Family
from flannelette.services.core.frozen import frozen
from flannelette.services.runtime.os.files import why_unreadable

DEFAULT_PREFIX: Final = "flannel.alpha.coreos.com"
_LABEL: Final = "[a-z0-9]([a-z0-9-]*[a-z0-9])?"
_PREFIX: Final = re.compile(rf"{_LABEL}(\.{_LABEL})+/([a-z0-9_-]+-)?", re.ASCII)


@frozen
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


@frozen
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


@frozen
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


@frozen
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


class Expired(Exception):
    """The watch cannot be resumed at this position: list again."""


class Silent(Unavailable):
    """An open watch has brought nothing for long. Nothing need be wrong: ask again."""


class Gone(Exception):
    """There is no such object."""


class NodeProblem(NotYet):
    """A node has no lease, or not the one that it should have, and an operator can help."""

    def __init__(self, node: str, condition: Condition) -> None:
        super().__init__(condition.problem)
        self.node = node
        self.condition = condition


class Busy(Unavailable):
    """The API server asks to come back later."""

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds
        """Seconds to wait before the next attempt, at least."""


@frozen
class Node:
    """What we take of a Node object. Equal if nothing of it has changed; a heartbeat changes nothing."""

    name: str
    pod_cidrs: tuple[str, ...] = ()
    """Subnets as Kubernetes wrote them; empty until the controller manager assigns them."""
    annotations: Mapping[str, str] | None = None
    """Annotations with our prefix; None: there is none."""
    claimed: int = 0
    """When what it publishes was written last, or else it was made; Unix seconds."""

    def annotation(self, key: str) -> str:
        """Returns the annotation's text, empty when absent."""
        return (self.annotations or {}).get(key, "")


@frozen
class Deleted:
    """A Node object that is gone."""

    name: str


Event: TypeAlias = Node | Deleted


@frozen
class WatchBatch:
    """What happened, in order, and where to go on."""

    events: tuple[Event, ...]
    position: str
    """The resourceVersion to go on from: opaque."""


@frozen
class Timing:
    """How patient we are; seconds."""

    connect: float = 5.0
    """Time for a connection. One that was tried before kube-proxy knew the address of the Service is never
    answered."""
    call: float = 10.0
    """Time for the answer to a call."""
    page: float = 30.0
    """Time for a page of the listing."""
    silence: float = 20.0
    """Longest silence on an open watch; then it is opened again, which a server that is frozen does not answer within
    `call`.

    Each kubelet writes its Node every five minutes, so that where there are many nodes it is never silent, and where
    it is there are few lease services that open a watch again.
    """
    silence_alone: float = 100.0
    """The same on a watch of one node, of which all that comes is a bookmark each minute, however many there are."""
    watch: float = 300.0
    """Length of a watch, up to twice that: the server ends it then, so that the load moves between servers."""
    retry_first: float = 0.5
    """First pause before reconnecting; doubles, with jitter."""
    retry_most: float = 15.0
    """Longest pause before reconnecting."""
    patch_pause: float = 3.0
    """Pause between attempts to write, as flannel's."""
    patch_total: float = 30.0
    """Time for all attempts to write together."""
    pod_cidr: float = 10.0
    """Time that a request for a lease waits for the node's podCIDR; less than callers wait for an answer."""
    event_pause: float = 10.0
    """Pause between two writes of one Event, at least, and after a write that failed."""
    event_repeat: float = 300.0
    """Time until an Event is written again while its problem lasts."""


UNAUTHORIZED: Final = 401
WRITE_EVENT: Final = "write an event"
_RIGHTS: Final = "get, list and watch of nodes and patch of nodes/status"
_SENTENCES: Final = (
    ("CERTIFICATE_VERIFY_FAILED", "has a certificate that cannot be verified: check the certificate authority"),
    ("certificate required|bad certificate|unknown ca|alert", "does not accept our client certificate"),
    ("WRONG_VERSION_NUMBER|record layer failure", "speaks no TLS: write http://, or name its secure port"),
    ("Name or service not known|name resolution|getaddrinfo", "has a name that cannot be resolved"),
    ("Connect call failed|Connection refused|Errno 111", "refuses connections: check its address, and that it runs"),
    ("No route to host|Network is unreachable", "cannot be reached: check the network"),
    ("(?i)timeout", "does not answer in time"),
    ("Server disconnected|Connection lost|Connection reset|closed", "closed the connection"),
)
"""What the message matches, and what that means for a reader; the first one counts."""


class TooLarge(Unavailable):
    """The answer is larger than we take at once."""


def away(server: str, error: BaseException) -> Unavailable:
    """The server cannot be reached, or does not answer, and why."""
    details = f"{type(error).__name__}: {error}"
    sentence = next((text for pattern, text in _SENTENCES if re.search(pattern, details)), None)
    where = f"the Kubernetes API at {server}"
    return Unavailable(f"{where} {sentence}" if sentence else f"{where} cannot be used: {details}")


def broken(server: str, error: ValueError | RecursionError) -> Unavailable:
    """Makes the error for a server whose answer cannot be read."""
    return Unavailable(f"the Kubernetes API at {server} sent what cannot be read ({error}): is it an API server?")


def refusal(server: str, what: str, status: int, body: bytes | object, retry_after: str = "") -> Exception:
    """The error for an answer that is no success. `what` is what we wanted, `watch nodes`."""
    message = _message(body)
    if status == 410:
        return Expired(message)
    if status == 404:
        return Gone(message)
    if status == UNAUTHORIZED:
        return Unavailable(f"the Kubernetes API at {server} does not know us: check the token or certificate")
    if status == 403:
        rights = "create and patch of events" if what == WRITE_EVENT else _RIGHTS
        return Unavailable(
            f"the Kubernetes API at {server} does not let us {what}: give our role {rights} ({message})"
        )
    if 300 <= status < 400:
        return Unavailable(
            f"the Kubernetes API at {server} sends us elsewhere ({status}), which an API server does not: correct "
            "--kube-api-url or the kubeconfig"
        )
    text = f"the Kubernetes API at {server} cannot {what} now: {status} {message}".rstrip()
    if status == 429 or retry_after:
        return Busy(text, _seconds(retry_after))
    return Unavailable(text)


def _seconds(retry_after: str) -> float:
    """Kubernetes always sends whole seconds; more than a minute is no answer to rely on."""
    return min(float(retry_after), 60.0) if re.fullmatch(r"[0-9]{1,9}", retry_after, re.ASCII) else 1.0


def _message(body: bytes | object) -> str:
    """What a Status object says; or the start of whatever came instead."""
    if isinstance(body, bytes):
        try:
            return _message(json.loads(body))
        except (ValueError, RecursionError):
            return " ".join(body.decode(errors="replace").split())[:120]
    message = body.get("message") if isinstance(body, dict) else None
    return str(message or "")[:300]


class NotANode(ValueError):
    """What the server sent has not the shape of a Node."""


def read_node(document: Any, keys: Annotations) -> Node:
    """The node, with the annotations that are ours. Raises NotANode."""
    metadata = _mapping(document, "metadata")
    name = _encodable(metadata.get("name"))
    if not isinstance(name, str) or not name:
        raise NotANode("a Node without a name")
    spec = _mapping(document, "spec")
    pod_cidrs = spec.get("podCIDRs") or ([spec["podCIDR"]] if spec.get("podCIDR") else [])
    # The names of annotations are the same in every node: kept once, they cost 1.6 MB less in 5,000 nodes.
    ours = {
        intern(key): _encodable(text)
        for key, text in _mapping(metadata, "annotations").items()
        if key.startswith(keys.prefix)
    }
    if not isinstance(pod_cidrs, list) or not all(isinstance(text, str) for text in (*pod_cidrs, *ours.values())):
        raise NotANode(f"Node {name} has fields of the wrong type")
    return Node(name, tuple(pod_cidrs), ours or None, _claimed(metadata, keys))


def _encodable(text: Any) -> Any:
    """The text; half a surrogate pair, which no program in Go writes, is a question mark."""
    return text if not isinstance(text, str) or text.isascii() else text.encode(errors="replace").decode()


def read_page(document: Any, keys: Annotations) -> tuple[list[Node], str, str]:
    """The nodes of a listing, its resourceVersion, and where it continues, empty at its end. Raises NotANode."""
    items = document.get("items") if isinstance(document, dict) else document
    if not isinstance(items, list | None):
        raise NotANode("items is not a JSON array")
    following = _mapping(document, "metadata").get("continue")
    return [read_node(item, keys) for item in items or ()], read_version(document), str(following or "")


def read_version(document: Any) -> str:
    """The resourceVersion of an object or a list. Raises NotANode."""
    version = _mapping(document, "metadata").get("resourceVersion")
    if not isinstance(version, str) or not version:
        raise NotANode("an object without resourceVersion")
    return version


def _claimed(metadata: Mapping[str, Any], keys: Annotations) -> int:
    """When what the node claims was written last, by the API server's managedFields; not before the Node was created.

    The age of the Node says nothing: the oldest node could take what others publish. But whoever may patch a Node may
    write its managedFields too, and any time into them.
    """
    times = [0]
    entries = metadata.get("managedFields")
    for entry in entries if isinstance(entries, list) else ():
        fields = _mapping(_mapping(_mapping(entry, "fieldsV1"), "f:metadata"), "f:annotations")
        if any(name[2:] in keys.claiming for name in fields):  # after `f:`
            times.append(_unix_seconds(entry.get("time")))
    return max(*times, _unix_seconds(metadata.get("creationTimestamp")))


def _unix_seconds(timestamp: Any) -> int:
    """Kubernetes writes whole seconds in UTC: 2026-01-31T12:00:00Z. 0: not known, or before 1970, which is older
    than any claim can be.
    """
    try:
        return max(int(datetime.fromisoformat(timestamp).timestamp()), 0)
    except (TypeError, ValueError, OverflowError):
        return 0


def _mapping(document: Any, key: str) -> Mapping[str, Any]:
    value = document.get(key) if isinstance(document, dict) else document
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise NotANode(f"{key} is not a JSON object")
    return value


_LONGEST: Final = 16 << 20
"""Bytes in a line; etcd, and so Kubernetes, refuses objects of more than 1.5 MB."""
_TRANSIENT: Final = frozenset({429, 500, 502, 503, 504})
"""Codes of an ERROR event after which the watch can be resumed at the same position."""


class Lines:
    """Chunks of bytes to whole lines."""

    def __init__(self) -> None:
        self.rest = b""
        """The beginning of the next one."""

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The lines that are complete now. Raises ValueError for one that does not end."""
        *whole, self.rest = (self.rest + chunk).split(b"\n")
        if len(self.rest) > _LONGEST:
            raise ValueError(f"a line of more than {_LONGEST} bytes")
        return (line for line in whole if line.strip())


def read_batch(lines: Iterable[bytes], keys: Annotations, server: str) -> WatchBatch | None:
    """The events in these lines; None if there are none, not even a bookmark.

    Raises ValueError for what is no event, Expired or Unavailable for an ERROR: events before it are dropped, and
    come again from the same position.
    """
    events: list[Event] = []
    position = ""
    for line in lines:
        try:
            document = json.loads(line)
        except RecursionError:
            raise NotANode("JSON that is nested too deeply") from None
        kind, target = (document.get("type"), document.get("object")) if isinstance(document, dict) else (None, None)
        if kind == "ERROR":
            raise _error(server, target)
        position = read_version(target)
        if kind in ("ADDED", "MODIFIED"):
            events.append(read_node(target, keys))
        elif kind == "DELETED":
            events.append(Deleted(read_node(target, keys).name))
        elif kind != "BOOKMARK":
            raise NotANode(f"an event of type {kind!r}")
    return WatchBatch(tuple(events), position) if position else None


def _error(server: str, status: Any) -> Exception:
    code = status.get("code") if isinstance(status, dict) else None
    if isinstance(code, int) and code in _TRANSIENT:
        return refusal(server, "watch nodes", code, status)
    return Expired(f"the watch ended with {status!r:.300}")
