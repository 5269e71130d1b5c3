"""gce: routes of a Google Cloud network, whose next hops are instances. The only module that imports google-auth.

A route is ours by its description. Routes cannot be changed: another one of a second name is created before the old
one is deleted, so that there is one at any time.
"""

import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from ipaddress import ip_address, ip_network
from itertools import chain, count
from shlex import quote
from typing import Any, Final
from urllib.parse import urlencode

import google.auth
from google.auth.exceptions import GoogleAuthError, TransportError
from google.auth.transport.requests import AuthorizedSession
from requests import RequestException

from flannelette.services.cloud.providers.provider import Metadata, understood
from flannelette.services.cloud.routes import Change, CloudError, Failure, Route, RouteTables, Table, Target, Verb
from flannelette.services.core.backend_types import BackendOptions
from flannelette.services.core.family import Address, Network

MOST_ROUTES: Final = 250
"""Static routes of a network, by default."""
_PRIORITY: Final = 1000
_SECONDS: Final = 15.0
_MOST_SECONDS: Final = 120.0
"""Seconds that an operation may take; Google answers a wait for it after two minutes at the latest."""
_PAGE: Final = "docs/backends.md#gce"
_SCOPES: Final = ["https://www.googleapis.com/auth/compute"]
_HOPS: Final = (
    "nextHopInstance", "nextHopIp", "nextHopGateway", "nextHopIlb", "nextHopVpnTunnel", "nextHopPeering",
    "nextHopNetwork", "nextHopHub",
)  # fmt: skip
_CURES: Final = {
    401: f"give the instance a service account with the role of {_PAGE}, or set GOOGLE_APPLICATION_CREDENTIALS",
    403: f"give the service account the role of {_PAGE}, and the instance the scope compute-rw",
    404: "correct the project, or the network",
}


class Gce:
    """The network of the instance that this runs on. Credentials are google-auth's default ones."""

    batch = 20

    def __init__(self, options: BackendOptions, *, endpoint: str, metadata: str, most: int, mark: str) -> None:
        self._most = most or MOST_ROUTES
        self._mark = mark
        own = Metadata(
            metadata or f"http://{os.environ.get('GCE_METADATA_HOST', '169.254.169.254')}",
            "run flannelette-cloud on an instance of the network",
            {"Metadata-Flavor": "Google"},
        )
        self._project = own.text("/computeMetadata/v1/project/project-id")
        said = own.text("/computeMetadata/v1/instance/network-interfaces/0/network")
        self._network = said.rpartition("/")[2]
        base = endpoint.rstrip("/") or "https://compute.googleapis.com"
        self._base = f"{base}/compute/v1/projects/{self._project}"
        try:
            credentials, _ = google.auth.default(scopes=_SCOPES)
        except (GoogleAuthError, OSError, ValueError) as error:
            raise CloudError(Failure.DENIED, "no credentials", _text(error), _CURES[401]) from None
        self._session = AuthorizedSession(credentials)
        self._names: frozenset[str] = frozenset()
        """Names of all routes of the project, as of the last look."""

    @understood
    def look(self, addresses: Collection[Address]) -> RouteTables:
        """The routes of the network, as one table, and the instances in it."""
        targets = {}
        wanted = frozenset(addresses)
        for scoped in self._pages(
            "aggregated/instances",
            fields="items/*/instances(selfLink,canIpForward,networkInterfaces(network,networkIP)),nextPageToken",
        ):
            for instance in scoped[1].get("instances", ()):
                for interface in instance.get("networkInterfaces", ()):
                    address = ip_address(interface.get("networkIP") or "0.0.0.0")  # noqa: S104 - has IPv6 alone
                    if address in wanted and interface["network"].rpartition("/")[2] == self._network:
                        targets[address] = Target(_short(instance["selfLink"]), bool(instance.get("canIpForward")))
        every = [*self._pages("global/routes")]
        self._names = frozenset(str(route["name"]) for route in every)
        found = [route for route in every if route["network"].rpartition("/")[2] == self._network]
        return RouteTables([Table(self._network, tuple(self._routes(found)), self._most)], targets)

    @understood
    def apply(self, changes: Sequence[Change]) -> Mapping[Change, CloudError]:
        """Operations that run side by side; the old route of a REPLACE is deleted once the new one is there."""
        if changes[0].verb is Verb.FORWARD:
            return {
                change: CloudError(
                    Failure.REFUSED, "canIpForward", f"{change.route.target} may not forward packets",
                    "Google allows it at creation only: create the instance again with --can-ip-forward",
                ) for change in changes
            }  # fmt: skip
        failed: dict[Change, CloudError] = {}
        if changes[0].verb is not Verb.DELETE:
            failed |= self._operations({change: ("POST", "global/routes", self._body(change)) for change in changes})
        gone = {change: change.old or change.route for change in changes if change not in failed}
        deletions = self._operations(
            {
                change: ("DELETE", f"global/routes/{route.handle}", None)
                for change, route in gone.items()
                if route.handle
            }
        )
        return failed | {change: error for change, error in deletions.items() if error.trouble is not Failure.CHANGED}

    def _body(self, change: Change) -> Any:
        route = change.route
        return {
            "name": self._name(route.destination),
            "description": self._mark,
            "destRange": str(route.destination),
            "network": f"projects/{self._project}/global/networks/{self._network}",
            "nextHopInstance": f"projects/{self._project}/{route.target}",
            "priority": _PRIORITY,
            "tags": [],
        }

    def command(self, change: Change) -> str:
        """Returns the change as lines for gcloud."""
        route, begin = change.route, f"gcloud compute --project={self._project}"
        if change.verb is Verb.FORWARD:
            return f"# {route.target} cannot forward: create it again with --can-ip-forward"
        gone = change.old or (route if change.verb is Verb.DELETE else None)
        delete = f"{begin} routes delete {gone.handle} --quiet" if gone else ""
        if change.verb is Verb.DELETE:
            return delete
        _, zone, _, instance = route.target.split("/")
        create = (
            f"{begin} routes create {self._name(route.destination)} --network={self._network} "
            f"--destination-range={route.destination} --next-hop-instance={instance} --next-hop-instance-zone={zone} "
            f"--priority={_PRIORITY} --description={quote(self._mark)}"
        )
        return f"{create} && {delete}" if delete else create

    def _name(self, destination: Network) -> str:
        """flannel's name of a route; another one where the project, of any network, has that."""
        name = f"flannel-{str(destination).replace('.', '-').replace('/', '-')}"
        return next(each for each in chain([name], (f"{name}-{n}" for n in count(2))) if each not in self._names)

    def _routes(self, found: list[Any]) -> Iterator[Route]:
        for each in found:
            destination = ip_network(each["destRange"])
            if destination.version != 4 or each.get("nextHopNetwork") or each.get("nextHopPeering"):
                continue  # those that Google makes, which do not count
            target = next((_short(each[key]) for key in _HOPS if each.get(key)), "?")
            dead = any(warning.get("code") in _DEAD for warning in each.get("warnings", ()))
            is_ours = each.get("description") == self._mark
            yield Route(self._network, destination, target, "blackhole" if dead else "active", each["name"], is_ours)

    def _pages(self, path: str, **parameters: str) -> Iterator[Any]:
        token = ""
        while True:
            query = urlencode(parameters | ({"pageToken": token} if token else {}))
            answer = self._call("GET", f"{path}?{query}" if query else path)
            items = answer.get("items", ())
            yield from items.items() if isinstance(items, dict) else items
            if not (token := answer.get("nextPageToken", "")):
                return

    def _operations(self, calls: Mapping[Change, tuple[str, str, Any]]) -> dict[Change, CloudError]:
        """The calls are made, then each operation is waited for. Returns those that failed, also while they ran."""
        failed: dict[Change, CloudError] = {}
        started: dict[Change, Any] = {}
        end: CloudError | None = None
        for change, call in calls.items():
            try:
                if end is not None:
                    raise end
                started[change] = self._call(*call)
            except CloudError as error:
                failed[change] = error
                end = error if error.trouble in (Failure.WAIT, Failure.DENIED) else None
        for change, operation in started.items():
            try:
                self._wait(operation)
            except CloudError as error:
                failed[change] = error
        return failed

    def _wait(self, operation: Any) -> None:
        """Waits until the operation is carried out. Raises CloudError after too long a wait, and for an error that
        the operation reports.
        """
        until = time.monotonic() + _MOST_SECONDS
        while operation.get("status") != "DONE":
            if time.monotonic() > until:
                raise CloudError(Failure.WAIT, "timeout", f"operation {operation.get('name')} takes long")
            operation = self._call("POST", f"global/operations/{operation['name']}/wait", seconds=_MOST_SECONDS)
        for error in operation.get("error", {}).get("errors", ()):
            code = str(error.get("code", ""))
            trouble = Failure.FULL if "QUOTA" in code else Failure.REFUSED
            raise CloudError(trouble, code, str(error.get("message", "")), _FULL if trouble is Failure.FULL else "")

    def _call(self, method: str, path: str, body: Any = None, seconds: float = _SECONDS) -> Any:
        try:
            answer = self._session.request(method, f"{self._base}/{path}", json=body, timeout=seconds)
            document = answer.json()
        except TransportError as error:
            raise CloudError(Failure.WAIT, "no answer", _text(error)) from None
        except GoogleAuthError as error:
            raise CloudError(Failure.DENIED, "no credentials", _text(error), _CURES[401]) from None
        except (RequestException, ValueError) as error:
            raise CloudError(Failure.WAIT, "no answer", _text(error)) from None
        if answer.status_code < 400:
            return document
        said = document.get("error", {}) if isinstance(document, dict) else {}
        reasons = [str(each.get("reason", "")) for each in said.get("errors", ())] or [""]
        trouble = _trouble(answer.status_code, reasons[0])
        cure = _FULL if trouble is Failure.FULL else _CURES.get(answer.status_code, "")
        raise CloudError(
            trouble, f"HTTP {answer.status_code} {reasons[0]}".strip(), str(said.get("message", "")), cure
        )


_FULL: Final = "have Google raise the quota `Static routes per VPC network`"
_DEAD: Final = ("NEXT_HOP_INSTANCE_NOT_FOUND", "NEXT_HOP_NOT_RUNNING", "NEXT_HOP_CANNOT_IP_FORWARD")


def _trouble(status: int, reason: str) -> Failure:
    if reason in ("rateLimitExceeded", "userRateLimitExceeded") or status == 429 or status >= 500:
        return Failure.WAIT
    if reason == "quotaExceeded":
        return Failure.FULL
    if status in (401, 403):
        return Failure.DENIED
    return Failure.CHANGED if status in (404, 409, 412) else Failure.REFUSED


def _short(link: str) -> str:
    """`zones/ZONE/instances/NAME` of a link, or what else there is behind the project."""
    head, project, tail = link.partition("/projects/")
    return tail.partition("/")[2] if project else head


def _text(error: Exception) -> str:
    """The words of an error of google-auth, without the answer that comes with them."""
    return str(error.args[0] if error.args else error)
