"""ali-vpc: route entries of an Alibaba Cloud VPC, whose next hops are ECS instances. Alone imports Alibaba's SDK.

A route entry is ours by its description. flannel writes to the VPC's first table; this writes to the tables of all
vSwitches that nodes are in. Alibaba carries a change out after its answer, and refuses others until then.
"""

import logging
import time
from calendar import timegm
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from ipaddress import ip_address, ip_network
from json import dumps
from shlex import quote
from typing import Any, Final

from alibabacloud_credentials.exceptions import CredentialException
from alibabacloud_credentials.models import CredentialModel
from alibabacloud_credentials.provider import (
    CLIProfileCredentialsProvider,
    EnvironmentVariableCredentialsProvider,
    ProfileCredentialsProvider,
)
from alibabacloud_tea_openapi.client import Client
from alibabacloud_tea_openapi.utils_models import Config, OpenApiRequest, Params
from darabonba.runtime import RuntimeOptions
from Tea.exceptions import TeaException

from flannelette.services.cloud.providers.provider import Codes, KeyChain, Keys, Metadata, Role, understood
from flannelette.services.cloud.routes import Change, CloudError, Failure, Route, RouteTables, Table, Target, Verb
from flannelette.services.core.backend_types import KeyOptions
from flannelette.services.core.family import Address
from flannelette.services.runtime.backoff import Backoff

MOST_ROUTES: Final = 200
"""Custom route entries of a table, by default."""
_VERSIONS: Final = {"vpc": "2016-04-28", "ecs": "2014-05-26"}
_ADDRESSES, _TABLES, _ENTRIES = 100, 50, 100
"""Largest number of items in one call: addresses that are asked about, tables of a page, route entries of a page."""
_WAIT_SECONDS: Final = 20.0
_PAGE: Final = "docs/backends.md#ali-vpc"
_ROLE: Final = Role(
    "/latest/meta-data/ram/security-credentials/",
    ("AccessKeyId", "AccessKeySecret", "SecurityToken"),
    lambda said: timegm(time.strptime(said["Expiration"], "%Y-%m-%dT%H:%M:%SZ")),
    header="X-aliyun-ecs-metadata-token",
)
_CODES: Final = Codes(
    {
        Failure.WAIT: (
            "Throttling ServiceUnavailable InternalError UnknownError SystemBusy TaskConflict OperationConflict "
            "LastTokenProcessing IncorrectRouteEntryStatus IncorrectStatus IncorrectVpcStatus OperationFailed"
        ),
        Failure.DENIED: (
            "Forbidden NoPermission InvalidAccessKey SignatureDoesNotMatch IncompleteSignature InvalidSecurityToken "
            "MissingSecurityToken InvalidTimeStamp InvalidRegionId InvalidVpcI"
        ),
        Failure.FULL: "QuotaExceeded RouterEntryQuotaExceeded VpcRouteEntryQuotaExceeded",
        Failure.CHANGED: (
            "RouterEntryConflict.Duplicated Duplicated.VpcNextHop InvalidCIDRBlock.Duplicate "
            "InvalidRouteEntry.NotFound InvalidRouteEntryId.NotFound InvalidRouteTableId.NotFound"
        ),
    },
    {
        **dict.fromkeys(("Forbidden", "NoPermission"), f"give the instance's RAM role the policy of {_PAGE}"),
        "InvalidAccessKey": "correct the AccessKey, or remove it to use the instance's RAM role",
        "SignatureDoesNotMatch": "correct the AccessKeySecret, or the clock of this host",
        "InvalidSecurityToken": "renew the credentials; those of an instance's role renew themselves",
        "InvalidTimeStamp": "set the clock of this host",
        **dict.fromkeys(("InvalidRegionId", "InvalidVpcI"), "run flannelette-cloud on an instance of the VPC"),
        "InvalidCIDRBlock": "choose a Network that overlaps no vSwitch of the VPC, and not 100.64.0.0/10",
        "IncorrectInstanceStatus": "start the instance",
        **dict.fromkeys(
            ("QuotaExceeded", "RouterEntryQuotaExceeded", "VpcRouteEntryQuotaExceeded"),
            "have Alibaba raise the quota of custom route entries in a route table, then set --cloud-routes-limit",
        ),
    },
)
for _chatty in ("darabonba-core", "alibabacloud-tea"):
    logging.getLogger(_chatty).setLevel(logging.WARNING)  # with DEBUG=sdk they print tokens


class Ali:
    """The VPC of the instance that this runs on."""

    batch = 30
    """Alibaba takes 50, but in the URL, whose length is limited."""

    def __init__(self, options: KeyOptions, *, endpoint: str, metadata: str, most: int, mark: str) -> None:
        self._most = most or MOST_ROUTES
        self._mark = mark
        service = metadata or "http://100.100.100.200"
        own = Metadata(service, "run flannelette-cloud on an instance of the VPC").with_token(_ROLE.header)
        self._region = own.text("/latest/meta-data/region-id")
        self._vpc = own.text("/latest/meta-data/vpc-id")
        cure = f"give the instance a RAM role ({_PAGE}), or set ALIBABA_CLOUD_ACCESS_KEY_ID and ..._SECRET"
        self._chain = KeyChain(options, _sdk_keys(), _ROLE, Metadata(service, cure))
        url = endpoint.rstrip("/") or f"https://{{product}}.{self._region}.aliyuncs.com"
        self._clients = {product: self._client(url.replace("{product}", product)) for product in _VERSIONS}

    @understood
    def look(self, addresses: Collection[Address]) -> RouteTables:
        """The tables of the VPC's vSwitches, and the instances with these addresses."""
        found = [each for each in self._tables() if each.get("AssociateType", "VSwitch") == "VSwitch"]
        targets: dict[Address, Target] = {}
        switches = set()
        texts = sorted(map(str, addresses))
        for first in range(0, len(texts), _ADDRESSES):
            for instance in self._instances(texts[first : first + _ADDRESSES]):
                place = instance["VpcAttributes"]
                switches.add(place["VSwitchId"])
                for text in place["PrivateIpAddress"]["IpAddress"]:
                    targets[ip_address(text)] = Target(instance["InstanceId"])
        used = _tables_of(switches, found)
        names = [each["RouteTableId"] for each in found]
        tables = [Table(name, tuple(self._routes(name)), self._most, name in used) for name in names]
        return RouteTables(tables, {address: targets[address] for address in addresses if address in targets})

    @understood
    def apply(self, changes: Sequence[Change]) -> Mapping[Change, CloudError]:
        """One call, but for replacements; then the entries are waited for."""
        verb = changes[0].verb
        failed: dict[Change, CloudError] = {}
        if verb is Verb.REPLACE:
            for n, change in enumerate(changes):
                try:
                    self._call("vpc", "ModifyRouteEntry", **self._modified(change))
                except CloudError as error:
                    failed[change] = error
                    if error.trouble in (Failure.WAIT, Failure.DENIED):
                        return failed | dict.fromkeys(changes[n:], error)
                else:
                    self._wait(change, is_gone=False)
        else:
            rows = [self._entry(change) for change in changes]
            fields = {f"RouteEntries.{n}.{key}": value for n, row in enumerate(rows, 1) for key, value in row.items()}
            action = "CreateRouteEntries" if verb is Verb.CREATE else "DeleteRouteEntries"
            answer = self._call("vpc", action, **fields)
            refused = {each["DstCidrBlock"]: each for each in answer.get("FailedRouteEntries") or ()}
            for change in changes:
                if each := refused.get(str(change.route.destination)):
                    failed[change] = _CODES.error(action, str(each.get("FailedCode")), str(each.get("FailedMessage")))
            if done := [each for each in changes if each not in failed]:
                self._wait(done[-1], is_gone=verb is Verb.DELETE)
        return failed

    def command(self, change: Change) -> str:
        """A line for the CLI of Alibaba Cloud."""
        if change.verb is Verb.REPLACE:
            action, fields = "ModifyRouteEntry", self._modified(change)
        elif change.verb is Verb.CREATE:
            row = self._entry(change)
            row |= {"DestinationCidrBlock": row.pop("DstCidrBlock"), "NextHopId": row.pop("NextHop")}
            action, fields = "CreateRouteEntry", row
        else:
            action, fields = "DeleteRouteEntry", {"RouteEntryId": change.route.handle}
        words = (f"--{key} {quote(value)}" for key, value in fields.items())
        return f"aliyun vpc {action} --RegionId {self._region} {' '.join(words)}"

    def _entry(self, change: Change) -> dict[str, str]:
        route = change.route
        if change.verb is Verb.DELETE:
            return {"RouteTableId": route.table, "RouteEntryId": route.handle, "DstCidrBlock": str(route.destination)}
        return {
            "RouteTableId": route.table,
            "DstCidrBlock": str(route.destination),
            "NextHop": route.target,
            "NextHopType": "Instance",
            "Description": self._mark,
        }

    def _modified(self, change: Change) -> dict[str, str]:
        entry = change.old.handle if change.old else ""
        hop = {"NewNextHopType": "Instance", "NewNextHopId": change.route.target}
        return {"RouteEntryId": entry, **hop, "Description": self._mark}

    def _wait(self, change: Change, *, is_gone: bool) -> None:
        """Waits until the last entry of a call is there, or gone; a slow or failed change is found by the next
        comparison.
        """
        until, pauses = time.monotonic() + _WAIT_SECONDS, Backoff()
        with suppress(CloudError):
            while time.monotonic() < until:
                there = {route.state for route in self._routes(change.route.table, str(change.route.destination))}
                if there == (set() if is_gone else {"active"}):
                    return
                time.sleep(pauses.next())

    def _tables(self) -> Iterator[Any]:
        number, seen = 1, 0
        while True:
            page = {"VpcId": self._vpc, "PageNumber": str(number), "PageSize": str(_TABLES)}
            answer = self._call("vpc", "DescribeRouteTableList", **page)
            rows = answer["RouterTableList"]["RouterTableListType"]
            yield from rows
            number, seen = number + 1, seen + len(rows)
            if not rows or seen >= answer["TotalCount"]:
                return

    def _instances(self, addresses: Sequence[str]) -> Iterator[Any]:
        wanted = {"VpcId": self._vpc, "InstanceNetworkType": "vpc", "PrivateIpAddresses": dumps(addresses)}
        for answer in self._pages("ecs", "DescribeInstances", MaxResults=str(_ADDRESSES), **wanted):
            yield from answer["Instances"]["Instance"]

    def _routes(self, table: str, cidr: str = "") -> Iterator[Route]:
        """The IPv4 entries that somebody has created, or those of one destination."""
        custom = {"RouteTableId": table, "RouteEntryType": "Custom"} | (
            {"DestinationCidrBlock": cidr} if cidr else {}
        )
        for answer in self._pages("vpc", "DescribeRouteEntryList", MaxResult=str(_ENTRIES), **custom):
            for each in answer["RouteEntrys"]["RouteEntry"]:
                try:
                    destination = ip_network(each["DestinationCidrBlock"])
                except ValueError:  # a prefix list
                    continue
                hops = [hop.get("NextHopId") or "?" for hop in each["NextHops"]["NextHop"]]
                state = "active" if each["Status"] in ("Available", "Created") else "pending"
                is_ours = each.get("Description") == self._mark
                if destination.version == 4:
                    yield Route(table, destination, ",".join(hops), state, each["RouteEntryId"], is_ours)

    def _pages(self, product: str, action: str, **fields: str) -> Iterator[Any]:
        token = ""
        while True:
            answer = self._call(product, action, **fields, **({"NextToken": token} if token else {}))
            yield answer
            if not (token := answer.get("NextToken") or ""):
                return

    def _call(self, product: str, action: str, **fields: str) -> Any:
        how = Params(
            action=action, version=_VERSIONS[product], protocol="HTTPS", pathname="/", method="POST", auth_type="AK",
            style="RPC", req_body_type="formData", body_type="json",
        )  # fmt: skip
        request = OpenApiRequest(query={"RegionId": self._region, **fields})
        try:
            answer = self._clients[product].call_api(how, request, RuntimeOptions())
            return answer["body"]
        except TeaException as error:
            raise self._translated(action, error) from None
        except (CredentialException, ValueError, OSError) as error:
            raise CloudError(
                Failure.WAIT, f"{action}: {type(error).__name__}", self._chain.hide(str(error))
            ) from None

    def _translated(self, action: str, error: TeaException) -> CloudError:
        """The SDK wraps what it has not got from Alibaba."""
        inner = getattr(error, "inner_exception", None)
        if isinstance(inner, CloudError):
            return inner
        if inner is not None:
            return CloudError(Failure.WAIT, f"{action}: no answer", self._chain.hide(str(inner)))
        is_away = (getattr(error, "status_code", None) or 0) >= 500
        unknown = Failure.WAIT if is_away else Failure.REFUSED
        return _CODES.error(action, str(error.code), self._chain.hide(str(error.message)), unknown)

    def _client(self, url: str) -> Any:
        protocol, _, host = url.rpartition("://")
        waits = {"connect_timeout": 5000, "read_timeout": 15000}
        return Client(
            Config(endpoint=host, protocol=protocol or "https", credential=_Credential(self._chain), **waits)
        )


class _Credential:
    """What the SDK asks before each call."""

    def __init__(self, chain: KeyChain) -> None:
        self._chain = chain

    def get_credential(self) -> Any:
        keys = self._chain.keys()
        kind = "sts" if keys.token else "access_key"
        return CredentialModel(keys.name, keys.secret, keys.token or None, type=kind)


def _sdk_keys() -> Callable[[], Keys | None]:
    """The SDK's own places in its order; but not its client of the metadata service, whose address is fixed."""
    kinds = (EnvironmentVariableCredentialsProvider, CLIProfileCredentialsProvider, ProfileCredentialsProvider)
    places = [kind() for kind in kinds]

    def keys() -> Keys | None:
        for place in places:
            with suppress(CredentialException, TeaException, OSError, ValueError):
                found = place.get_credentials()
                return Keys(
                    found.get_access_key_id(), found.get_access_key_secret(), found.get_security_token() or ""
                )
        return None

    return keys


def _tables_of(switches: Collection[str], tables: Sequence[Any]) -> set[str]:
    """The tables of these vSwitches: those that name them, and for the others the system's."""
    by_switch = {switch: t["RouteTableId"] for t in tables for switch in t["VSwitchIds"].get("VSwitchId") or ()}
    system = next((t["RouteTableId"] for t in tables if t.get("RouteTableType") == "System"), "")
    return {by_switch.get(switch, system) for switch in switches}
