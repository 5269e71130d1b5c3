"""Alibaba Cloud as documented, in memory: metadata of an ECS instance, and route entries. Strict in all it is sent.

Changes take effect a while after the answer, and meanwhile no other is taken.
"""

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_network
from typing import Any, Final
from urllib.parse import quote

from tests.clouds import server
from tests.clouds.server import Answer, Refusal, Request, refuse_unknown

KEY_ID: Final = "LTAISEEDEDKEYID0000"
SECRET: Final = "SEEDEDaccessKeySecretOfAlibaba"  # noqa: S105
ROLE_ID: Final = "STS.SEEDEDROLEKEYID"
ROLE_SECRET: Final = "SEEDEDsecretOfTheRoleOfAlibaba"  # noqa: S105
TOKEN: Final = "CAISEEDEDsecurityTokenOfTheRole"  # noqa: S105
SECRETS: Final = (KEY_ID, SECRET, ROLE_ID, ROLE_SECRET, TOKEN)
_SESSION: Final = "a-token-of-the-metadata-service"
_META: Final = "/latest/meta-data/"
_ACTIONS: Final = {
    ("ecs", "DescribeInstances"): ("NextToken", "RegionId VpcId InstanceNetworkType PrivateIpAddresses MaxResults"),
    ("vpc", "DescribeRouteTableList"): ("", "RegionId VpcId PageNumber PageSize"),
    ("vpc", "DescribeRouteEntryList"): (
        "NextToken DestinationCidrBlock",
        "RegionId RouteTableId RouteEntryType MaxResult",
    ),
    ("vpc", "CreateRouteEntries"): ("", "RegionId RouteEntries"),
    ("vpc", "DeleteRouteEntries"): ("", "RegionId RouteEntries"),
    ("vpc", "ModifyRouteEntry"): ("Description", "RegionId RouteEntryId NewNextHopId NewNextHopType"),
}
"""Optional and required fields."""
_VERSIONS: Final = {"2014-05-26": "ecs", "2016-04-28": "vpc"}


@dataclass
class Account(server.Account):
    """VPC `vpc-1` with a table of the system for vSwitch `vsw-1`, and another one for `vsw-2`."""

    instances: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Address and vSwitch."""
    entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    keys: dict[str, tuple[str, str]] = field(
        default_factory=lambda: {KEY_ID: (SECRET, ""), ROLE_ID: (ROLE_SECRET, TOKEN)}
    )
    quota: int = 200
    page: int = 100
    delay: int = 2
    """Reads until a change has taken effect."""
    busy: int = 0
    """Those left of the last one."""

    def instance(self, name: str, address: str, switch: str = "vsw-1") -> None:
        self.instances[name] = (address, switch)

    def entry(self, cidr: str, hop: str, table: str = "vtb-system", mark: str = "", kind: str = "Instance") -> None:
        """An entry that has been there for long."""
        self.entries[f"rte-{next(self.numbers)}"] = {
            "RouteTableId": table, "DestinationCidrBlock": cidr, "hop": hop, "kind": kind, "Description": mark,
            "Status": "Available",
        }  # fmt: skip

    def table(self, name: str = "vtb-system") -> dict[str, str]:
        """Next hops by destination."""
        return {e["DestinationCidrBlock"]: e["hop"] for e in [*self.entries.values()] if e["RouteTableId"] == name}

    def delete(self, cidr: str) -> None:
        with self.lock:
            self.entries = {n: e for n, e in self.entries.items() if e["DestinationCidrBlock"] != cidr}

    def divert(self, cidr: str, hop: str) -> None:
        with self.lock:
            for entry in self.entries.values():
                entry["hop"] = hop if entry["DestinationCidrBlock"] == cidr else entry["hop"]

    def answer(self, request: Request) -> Answer:
        if "x-acs-action" not in request.headers:
            return self._metadata(request)
        try:
            return 200, {"RequestId": "R-1", **self._call(request)}
        except Refusal as refusal:
            said = {
                "Code": refusal.code,
                "Message": refusal.message,
                "RequestId": "R-1",
                "HostId": "vpc.aliyuncs.com",
            }
            return refusal.status, said

    def _metadata(self, request: Request) -> Answer:
        if (request.method, request.path) == ("PUT", "/latest/api/token"):
            return (200, _SESSION) if "x-aliyun-ecs-metadata-token-ttl-seconds" in request.headers else (400, "")
        if request.headers.get("x-aliyun-ecs-metadata-token") != _SESSION:
            return 403, "no token"
        said = {"region-id": "cn-hangzhou", "vpc-id": "vpc-1"}
        if self.has_role:
            said["ram/security-credentials/"] = "flannelette"
            said["ram/security-credentials/flannelette"] = json.dumps(
                {
                    "AccessKeyId": ROLE_ID,
                    "AccessKeySecret": ROLE_SECRET,
                    "SecurityToken": TOKEN,
                    "Expiration": "2100-01-01T00:00:00Z",
                    "LastUpdated": "2026-01-01T00:00:00Z",
                    "Code": "Success",
                }
            )
        name = request.path.removeprefix(_META)
        return (200, said[name]) if name in said and request.method == "GET" else (404, "")

    def _call(self, request: Request) -> dict[str, Any]:
        action = request.headers["x-acs-action"]
        self.calls[action] += 1
        if request.method != "POST" or request.path != "/" or request.body:
            raise Refusal("InvalidRequest")
        self._check(request)
        product = _VERSIONS.get(request.headers["x-acs-version"], "")
        if (product, action) not in _ACTIONS:
            raise Refusal("InvalidAction.NotFound", status=404)
        fields, rows = _unflattened(request.query)
        refuse_unknown(fields, *_ACTIONS[product, action])
        if fields["RegionId"] != "cn-hangzhou":
            raise Refusal("InvalidRegionId.NotFound", status=404)
        self.refuse(action)
        if action.startswith(("Create", "Delete", "Modify")) and self.busy:
            raise Refusal("TaskConflict", "The operation is too frequent")
        return {
            "DescribeInstances": self._instances,
            "DescribeRouteTableList": self._tables,
            "DescribeRouteEntryList": self._list,
            "CreateRouteEntries": lambda given: self._create(given, rows),
            "DeleteRouteEntries": lambda given: self._delete(given, rows),
            "ModifyRouteEntry": self._modify,
        }[action](fields)

    def _check(self, request: Request) -> None:
        """The signature ACS3-HMAC-SHA256."""
        kind, _, rest = request.headers.get("authorization", "").partition(" ")
        said = dict(part.split("=", 1) for part in rest.split(",")) if rest else {}
        name = said.get("Credential", "")
        if kind != "ACS3-HMAC-SHA256" or name not in self.keys:
            raise Refusal("InvalidAccessKeyId.NotFound", "Specified access key is not found.", 404)
        secret, token = self.keys[name]
        if request.headers.get("x-acs-security-token", "") != token:
            raise Refusal("InvalidSecurityToken.Expired", f"token {request.headers.get('x-acs-security-token')}")
        signed = said["SignedHeaders"].split(";")
        must = {
            "host",
            "x-acs-action",
            "x-acs-content-sha256",
            "x-acs-date",
            "x-acs-signature-nonce",
            "x-acs-version",
        }
        query = "&".join(f"{_word(key)}={_word(value)}" for key, value in sorted(request.query.items()))
        lines = "".join(f"{header}:{request.headers[header].strip()}\n" for header in signed)
        payload = hashlib.sha256(request.body).hexdigest()
        canonical = f"POST\n/\n{query}\n{lines}\n{';'.join(signed)}\n{payload}"
        text = f"{kind}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
        right = hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest()
        is_whole = must <= set(signed) and request.headers["x-acs-content-sha256"] == payload
        if not is_whole or said.get("Signature") != right:
            raise Refusal("SignatureDoesNotMatch", f"server canonicalRequest is: {canonical}")
        self.signers.add(name)

    def _instances(self, fields: Mapping[str, str]) -> dict[str, Any]:
        wanted = json.loads(fields["PrivateIpAddresses"])
        if len(wanted) > 100 or not 1 <= int(fields["MaxResults"]) <= 100:
            raise Refusal("InvalidParameter")
        rows = [
            {
                "InstanceId": name,
                "VpcAttributes": {
                    "VpcId": "vpc-1", "VSwitchId": switch, "PrivateIpAddress": {"IpAddress": [address]},
                },
            } for name, (address, switch) in self.instances.items() if address in wanted
        ]  # fmt: skip
        some, more = self._paged(rows, fields.get("NextToken", ""), fields["MaxResults"])
        return {"Instances": {"Instance": some}, "NextToken": more, "TotalCount": len(rows)}

    def _tables(self, fields: Mapping[str, str]) -> dict[str, Any]:
        if fields["VpcId"] != "vpc-1" or not 1 <= int(fields["PageSize"]) <= 50:
            raise Refusal("InvalidVpcId.NotFound", status=404)
        rows = [
            _table("vtb-system", "System", ["vsw-1"]),
            _table("vtb-b", "Custom", ["vsw-2"]),
            _table("vtb-gateway", "Custom", []) | {"AssociateType": "Gateway"},
        ]
        return {"RouterTableList": {"RouterTableListType": rows}, "TotalCount": len(rows), "PageNumber": 1}

    def _list(self, fields: Mapping[str, str]) -> dict[str, Any]:
        if fields["RouteTableId"] not in ("vtb-system", "vtb-b") or not 1 <= int(fields["MaxResult"]) <= 100:
            raise Refusal("InvalidRouteTableId.NotFound", status=404)
        self.busy = max(self.busy - 1, 0)
        if not self.busy:
            self.entries = {
                n: {**e, "Status": "Available"} for n, e in self.entries.items() if e["Status"] != "Deleting"
            }
        rows = [
            {
                "RouteEntryId": name,
                "NextHops": {"NextHop": [{"NextHopId": e["hop"], "NextHopType": e["kind"], "Enabled": 1}]},
                **{key: e[key] for key in ("RouteTableId", "DestinationCidrBlock", "Description", "Status")},
                "Type": "Custom",
            } for name, e in self.entries.items() if e["RouteTableId"] == fields["RouteTableId"]
            if fields.get("DestinationCidrBlock") in (None, e["DestinationCidrBlock"])
        ]  # fmt: skip
        some, more = self._paged(rows, fields.get("NextToken", ""), fields["MaxResult"])
        return {"RouteEntrys": {"RouteEntry": some}, "NextToken": more}

    def _paged(self, rows: list[Any], token: str, most: str) -> tuple[list[Any], str]:
        first, size = int(token or 0), min(self.page, int(most))
        return rows[first : first + size], str(first + size) if len(rows) > first + size else ""

    def _create(self, _: Mapping[str, str], rows: list[dict[str, str]]) -> dict[str, Any]:
        failed = []
        for row in rows:
            refuse_unknown(row, "Description", "RouteTableId DstCidrBlock NextHop NextHopType")
            code = self._refused(row)
            if code:
                failed.append(
                    {k: row[k] for k in ("DstCidrBlock", "NextHop")} | {"FailedCode": code, "FailedMessage": "no"}
                )
                continue
            self.entry(row["DstCidrBlock"], row["NextHop"], row["RouteTableId"], row.get("Description", ""))
            next(reversed(self.entries.values()))["Status"] = "Pending"
        self.busy = self.delay
        return {"FailedCount": len(failed), "FailedRouteEntries": failed, "SuccessCount": len(rows) - len(failed)}

    def _refused(self, row: Mapping[str, str]) -> str:
        there = self.table(row["RouteTableId"])
        if row["DstCidrBlock"] in there:
            return "RouterEntryConflict.Duplicated"
        if ip_network(row["DstCidrBlock"]).overlaps(ip_network("10.99.0.0/16")):
            return "InvalidCIDRBlock.OverlapsVSwitch"
        if row["NextHopType"] != "Instance" or row["NextHop"] not in self.instances:
            return "InvalidNextHop.NotFound"
        return "QuotaExceeded.RouteEntry" if len(there) >= self.quota else ""

    def _delete(self, _: Mapping[str, str], rows: list[dict[str, str]]) -> dict[str, Any]:
        failed = []
        for row in rows:
            refuse_unknown(row, "DstCidrBlock", "RouteTableId RouteEntryId")
            if row["RouteEntryId"] not in self.entries:
                code = {"FailedCode": "InvalidRouteEntryId.NotFound", "FailedMessage": "no"}
                failed.append({"DstCidrBlock": row.get("DstCidrBlock", ""), **code})
                continue
            self.entries[row["RouteEntryId"]]["Status"] = "Deleting"
        self.busy = self.delay
        return {"FailedCount": len(failed), "FailedRouteEntries": failed, "SuccessCount": len(rows) - len(failed)}

    def _modify(self, fields: Mapping[str, str]) -> dict[str, Any]:
        if fields["RouteEntryId"] not in self.entries:
            raise Refusal("InvalidRouteEntryId.NotFound", status=404)
        entry = self.entries[fields["RouteEntryId"]]
        entry |= {"hop": fields["NewNextHopId"], "kind": fields["NewNextHopType"], "Status": "Modifying"}
        entry["Description"] = fields.get("Description", entry["Description"])
        self.busy = self.delay
        return {}


def _table(name: str, kind: str, switches: list[str]) -> dict[str, Any]:
    return {
        "RouteTableId": name, "RouteTableType": kind, "VpcId": "vpc-1", "AssociateType": "VSwitch",
        "VSwitchIds": {"VSwitchId": switches},
    }  # fmt: skip


def _unflattened(query: Mapping[str, str]) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """`RouteEntries.1.NextHop` and so on as a list."""
    fields: dict[str, Any] = {key: value for key, value in query.items() if "." not in key}
    rows: dict[int, dict[str, str]] = {}
    for key, value in query.items():
        if "." in key:
            name, number, part = key.split(".")
            rows.setdefault(int(number), {})[part] = value
            fields[name] = rows
    if sorted(rows) != list(range(1, len(rows) + 1)) or len(rows) > 50:
        raise Refusal("InvalidParameter.RouteEntries")
    return fields, [rows[n] for n in sorted(rows)]


def _word(text: str) -> str:
    return quote(text, safe="~")
