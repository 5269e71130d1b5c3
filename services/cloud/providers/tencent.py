"""tencent-vpc: routes in route tables of a Tencent Cloud VPC, whose next hops are CVMs. Alone imports Tencent's SDK.

A route is ours by its description. Its next hop is the private address of the CVM, which is the one in the lease.
flannel writes to the table that is answered first; this writes to the tables of all subnets that nodes are in.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from ipaddress import ip_address, ip_network
from shlex import quote
from typing import Any, Final

from tencentcloud.common.common_client import CommonClient
from tencentcloud.common.credential import EnvironmentVariableCredential, ProfileCredential
from tencentcloud.common.exception.tencent_cloud_sdk_exception import TencentCloudSDKException
from tencentcloud.common.profile.client_profile import ClientProfile
from tencentcloud.common.profile.http_profile import HttpProfile

from flannelette.services.cloud.providers.provider import Codes, KeyChain, Keys, Metadata, Role, understood
from flannelette.services.cloud.routes import Change, CloudError, Failure, Route, RouteTables, Table, Target, Verb
from flannelette.services.core.backend_types import KeyOptions
from flannelette.services.core.family import Address

MOST_ROUTES: Final = 50
"""Routes of a table that somebody has created, by default."""
_VERSION: Final = "2017-03-12"
_ROWS: Final = 100
"""Largest number of rows in the answer to one call."""
_CVM: Final = "NORMAL_CVM"
_PAGE: Final = "docs/backends.md#tencent-vpc"
_META: Final = "/latest/meta-data"
_ROLE: Final = Role(
    f"{_META}/cam/security-credentials/",
    ("TmpSecretId", "TmpSecretKey", "Token"),
    lambda said: float(said["ExpiredTime"]),
)
_QUOTA: Final = "have Tencent raise the quota of routing policies in a route table, then set --cloud-routes-limit"
_CODES: Final = Codes(
    {
        Failure.WAIT: (
            "RequestLimitExceeded InternalError InternalServerError ResourceUnavailable ResourceBusy ResourceInUse "
            "UnsupportedOperation.MutexOperationTaskRunning ClientNetworkError ServerNetworkError FailedOperation"
        ),
        Failure.DENIED: "AuthFailure UnauthorizedOperation OperationDenied UnsupportedRegion",
        Failure.FULL: "LimitExceeded InvalidParameterValue.LimitExceeded",
        Failure.CHANGED: "ResourceNotFound InvalidParameterValue.Duplicate",
    },
    {
        "AuthFailure.UnauthorizedOperation": f"give the instance's CAM role the policy of {_PAGE}",
        "UnauthorizedOperation": f"give the instance's CAM role the policy of {_PAGE}",
        "AuthFailure.SecretIdNotFound": "correct the SecretId, or remove it to use the instance's CAM role",
        "AuthFailure.InvalidSecretId": "correct the SecretId, or remove it to use the instance's CAM role",
        "AuthFailure.SignatureFailure": "correct the SecretKey",
        "AuthFailure.SignatureExpire": "set the clock of this host",
        "AuthFailure.TokenFailure": "renew the credentials; those of an instance's role renew themselves",
        "UnsupportedRegion": "run flannelette-cloud on an instance of the VPC",
        "LimitExceeded": _QUOTA,
        "InvalidParameterValue.LimitExceeded": _QUOTA,
        "UnsupportedOperation.Ecmp": "delete the other route to this subnet, or take the subnet out of the network",
    },
)


class Tencent:
    """The VPC of the instance that this runs on."""

    batch = 50

    def __init__(self, options: KeyOptions, *, endpoint: str, metadata: str, most: int, mark: str) -> None:
        self._most = most or MOST_ROUTES
        self._mark = mark
        service = metadata or "http://metadata.tencentyun.com"
        own = Metadata(service, "run flannelette-cloud on an instance of the VPC")
        self._region = own.text(f"{_META}/placement/region")
        mac = own.text(f"{_META}/mac")
        self._vpc = own.text(f"{_META}/network/interfaces/macs/{mac}/vpc-id")
        cure = f"give the instance a CAM role ({_PAGE}), or set TENCENTCLOUD_SECRET_ID and TENCENTCLOUD_SECRET_KEY"
        self._chain = KeyChain(options, _sdk_keys, _ROLE, Metadata(service, cure))
        protocol, _, host = (endpoint.rstrip("/") or "https://vpc.tencentcloudapi.com").rpartition("://")
        http = HttpProfile(protocol=protocol or "https", endpoint=host, reqTimeout=15, keepAlive=True)
        profile = ClientProfile(httpProfile=http, language="en-US")
        self._client = CommonClient("vpc", _VERSION, _Credential(self._chain), self._region, profile)

    @understood
    def look(self, addresses: Collection[Address]) -> RouteTables:
        """The tables of the VPC, and the network interfaces with these addresses."""
        wanted = frozenset(addresses)
        here = {"Filters": [{"Name": "vpc-id", "Values": [self._vpc]}]}
        targets: dict[Address, Target] = {}
        subnets = set()
        for each in self._rows("DescribeNetworkInterfaces", "NetworkInterfaceSet", int, here):
            for row in each.get("PrivateIpAddressSet") or ():
                address = ip_address(row["PrivateIpAddress"])
                if address in wanted and each.get("Attachment"):
                    targets[address] = Target(str(address))
                    subnets.add(each["SubnetId"])
        found = list(self._rows("DescribeRouteTables", "RouteTableSet", str, here))
        used = _tables_of(subnets, found)
        names = [each["RouteTableId"] for each in found]
        rows = [tuple(self._routes(each)) for each in found]
        return RouteTables([Table(n, r, self._most, n in used) for n, r in zip(names, rows, strict=True)], targets)

    @understood
    def apply(self, changes: Sequence[Change]) -> Mapping[Change, CloudError]:
        """One call, or two if some routes are only disabled."""
        for action, fields in self._calls(changes):
            self._call(action, fields)
        return {}

    def command(self, change: Change) -> str:
        """A line for the CLI of Tencent Cloud."""
        ((action, fields),) = self._calls([change])
        texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in fields.items()}
        return f"tccli vpc {action} --region {self._region} {' '.join(f'--{k} {quote(v)}' for k, v in texts.items())}"

    def _calls(self, changes: Sequence[Change]) -> Iterator[tuple[str, dict[str, Any]]]:
        verb, table = changes[0].verb, {"RouteTableId": changes[0].route.table}
        if verb is Verb.DELETE:
            yield "DeleteRoutes", table | {"Routes": [{"RouteId": int(each.route.handle)} for each in changes]}
            return
        disabled = [int(c.old.handle) for c in changes if c.old and c.old.target == c.route.target]
        if disabled:
            yield "EnableRoutes", table | {"RouteIds": disabled}
        rows = [self._route(c) for c in changes if not (c.old and c.old.target == c.route.target)]
        if rows:
            yield "CreateRoutes" if verb is Verb.CREATE else "ReplaceRoutes", table | {"Routes": rows}

    def _route(self, change: Change) -> dict[str, Any]:
        return {
            **({"RouteId": int(change.old.handle)} if change.old else {}),
            "DestinationCidrBlock": str(change.route.destination),
            "GatewayType": _CVM,
            "GatewayId": change.route.target,
            "RouteDescription": self._mark,
            "Enabled": True,
        }

    def _routes(self, table: Any) -> Iterator[Route]:
        """The IPv4 routes that somebody has created."""
        for each in table["RouteSet"]:
            if each.get("RouteType", "USER") != "USER" or not each.get("DestinationCidrBlock"):
                continue
            hop = each["GatewayId"] if each["GatewayType"] == _CVM else f"{each['GatewayType']}:{each['GatewayId']}"
            state = "active" if each.get("Enabled", True) else "disabled"
            is_ours = each.get("RouteDescription") == self._mark
            destination = ip_network(each["DestinationCidrBlock"])
            yield Route(table["RouteTableId"], destination, hop, state, str(each["RouteId"]), is_ours)

    def _rows(self, action: str, key: str, number: Callable[[int], Any], fields: Mapping[str, Any]) -> Iterator[Any]:
        """All pages; the numbers of some calls are text."""
        seen = 0
        while True:
            answer = self._call(action, {**fields, "Offset": number(seen), "Limit": number(_ROWS)})
            yield from answer[key]
            seen += len(answer[key])
            if not answer[key] or seen >= answer["TotalCount"]:
                return

    def _call(self, action: str, fields: Mapping[str, Any]) -> Any:
        try:
            answer = self._client.call_json(action, dict(fields))["Response"]
        except TencentCloudSDKException as error:
            raise _CODES.error(action, str(error.get_code()), self._said(error.get_message())) from None
        except (OSError, ValueError) as error:
            raise CloudError(Failure.WAIT, f"{action}: no answer", self._said(error)) from None
        if said := answer.get("Error"):  # the SDK looks for it in answers of one content type only
            raise _CODES.error(action, str(said["Code"]), self._said(said["Message"]))
        return answer

    def _said(self, message: Any) -> str:
        text = message.decode("utf-8", "replace") if isinstance(message, bytes) else str(message)
        return self._chain.hide(text)


class _Credential:
    """What the SDK asks before each call."""

    def __init__(self, chain: KeyChain) -> None:
        self._chain = chain

    def get_credential_info(self) -> tuple[str, str, str | None]:
        keys = self._chain.keys()
        return keys.name, keys.secret, keys.token or None


def _sdk_keys() -> Keys | None:
    """The SDK's own places in its order; but not its client of the metadata service, which waits without limit."""
    found = EnvironmentVariableCredential().get_credential() or ProfileCredential().get_credential()
    return Keys(found.secret_id, found.secret_key, found.token or "") if found else None


def _tables_of(subnets: Collection[str], tables: Sequence[Any]) -> set[str]:
    """The tables of these subnets: those that name them, and for the others the VPC's main one."""
    by_subnet = {each["SubnetId"]: t["RouteTableId"] for t in tables for each in t.get("AssociationSet") or ()}
    main = next((t["RouteTableId"] for t in tables if t.get("Main")), "")
    return {by_subnet.get(subnet, main) for subnet in subnets}
