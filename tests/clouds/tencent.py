"""Tencent Cloud as documented, in memory: metadata of a CVM, and route tables. Strict in all that it is sent."""

import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tests.clouds import server
from tests.clouds.server import Answer, Refusal, Request, refuse_unknown

KEY_ID: Final = "AKIDSEEDEDsecretId0000"
SECRET: Final = "SEEDEDsecretKeyOfTencent"  # noqa: S105
ROLE_ID: Final = "AKIDSEEDEDofTheRole000"
ROLE_SECRET: Final = "SEEDEDtmpSecretKeyOfTencent"  # noqa: S105
TOKEN: Final = "SEEDEDtokenOfTheCamRole"  # noqa: S105
SECRETS: Final = (KEY_ID, SECRET, ROLE_ID, ROLE_SECRET, TOKEN)
_META: Final = "/latest/meta-data/"
_ACTIONS: Final = {
    "DescribeNetworkInterfaces": ("", "Filters Offset Limit"),
    "DescribeRouteTables": ("", "Filters Offset Limit"),
    "CreateRoutes": ("", "RouteTableId Routes"),
    "ReplaceRoutes": ("", "RouteTableId Routes"),
    "DeleteRoutes": ("", "RouteTableId Routes"),
    "EnableRoutes": ("", "RouteTableId RouteIds"),
}
"""Optional and required fields."""
_ROUTE: Final = "DestinationCidrBlock GatewayType GatewayId"


@dataclass
class Account(server.Account):
    """VPC `vpc-1` with the main table for all subnets but `subnet-2`, which has one of its own."""

    interfaces: list[dict[str, Any]] = field(default_factory=list)
    routes: list[dict[str, Any]] = field(default_factory=list)
    keys: dict[str, tuple[str, str]] = field(
        default_factory=lambda: {KEY_ID: (SECRET, ""), ROLE_ID: (ROLE_SECRET, TOKEN)}
    )
    quota: int = 50

    def instance(self, address: str, subnet: str = "subnet-1") -> None:
        number = len(self.interfaces)
        self.interfaces.append(
            {
                "NetworkInterfaceId": f"eni-{number}", "VpcId": "vpc-1", "SubnetId": subnet, "Primary": True,
                "State": "AVAILABLE", "Attachment": {"InstanceId": f"ins-{number}", "DeviceIndex": 0},
                "PrivateIpAddressSet": [{"PrivateIpAddress": address, "Primary": True, "State": "AVAILABLE"}],
            }
        )  # fmt: skip

    def route(self, cidr: str, hop: str, table: str = "rtb-main", mark: str = "", **more: Any) -> None:
        """A route that has been there for long."""
        self.routes.append(
            {
                "RouteTableId": table, "RouteId": next(self.numbers), "RouteType": "USER", "Enabled": True,
                "DestinationCidrBlock": cidr, "GatewayType": "NORMAL_CVM", "GatewayId": hop, "RouteDescription": mark,
            } | more
        )  # fmt: skip

    def table(self, name: str = "rtb-main") -> dict[str, str]:
        """Next hops of the routes in force by destination."""
        rows = (r for r in self.routes if r["RouteTableId"] == name and r["Enabled"])
        return {r["DestinationCidrBlock"]: r["GatewayId"] for r in rows}

    def delete(self, cidr: str) -> None:
        with self.lock:
            self.routes = [each for each in self.routes if each["DestinationCidrBlock"] != cidr]

    def divert(self, cidr: str, hop: str) -> None:
        with self.lock:
            for route in self.routes:
                route["GatewayId"] = hop if route["DestinationCidrBlock"] == cidr else route["GatewayId"]

    def answer(self, request: Request) -> Answer:
        if request.method == "GET":
            return self._metadata(request)
        try:
            return 200, {"Response": {"RequestId": "R-1", **self._call(request)}}
        except Refusal as refusal:
            error = {"Code": refusal.code, "Message": refusal.message}
            return 200, {"Response": {"Error": error, "RequestId": "R-1"}}

    def _metadata(self, request: Request) -> Answer:
        said = {
            "placement/region": "ap-guangzhou",
            "mac": "52:54:00:00:00:01",
            "network/interfaces/macs/52:54:00:00:00:01/vpc-id": "vpc-1",
        }
        if self.has_role:
            said["cam/security-credentials/"] = "flannelette"
            role = {"TmpSecretId": ROLE_ID, "TmpSecretKey": ROLE_SECRET, "Token": TOKEN, "Code": "Success"}
            said["cam/security-credentials/flannelette"] = json.dumps(role | {"ExpiredTime": 4102444800})
        name = request.path.removeprefix(_META)
        return (200, said[name]) if name in said else (404, "")

    def _call(self, request: Request) -> dict[str, Any]:
        action = request.headers["x-tc-action"]
        self.calls[action] += 1
        self._check(request)
        if request.headers["x-tc-version"] != "2017-03-12" or action not in _ACTIONS:
            raise Refusal("InvalidAction")
        if request.headers["x-tc-region"] != "ap-guangzhou":
            raise Refusal("UnsupportedRegion")
        given = json.loads(request.body)
        refuse_unknown(given, *_ACTIONS[action])
        self.refuse(action)
        if action.startswith("Describe"):
            return self._describe(action, given)
        if given["RouteTableId"] not in ("rtb-main", "rtb-b"):
            raise Refusal("ResourceNotFound", f"[RouteTableId:{given['RouteTableId']}]")
        return {
            "CreateRoutes": self._create,
            "ReplaceRoutes": self._replace,
            "DeleteRoutes": self._delete,
            "EnableRoutes": self._enable,
        }[action](given)

    def _check(self, request: Request) -> None:
        """The signature TC3-HMAC-SHA256."""
        kind, _, rest = request.headers.get("authorization", "").partition(" ")
        said = dict(part.strip().split("=", 1) for part in rest.split(",")) if rest else {}
        name, _, scope = said.get("Credential", "").partition("/")
        stamp = request.headers.get("x-tc-timestamp", "0")
        day = time.strftime("%Y-%m-%d", time.gmtime(int(stamp)))
        if kind != "TC3-HMAC-SHA256" or name not in self.keys or scope != f"{day}/vpc/tc3_request":
            raise Refusal("AuthFailure.SecretIdNotFound", f"The SecretId {name} is not found")
        secret, token = self.keys[name]
        if request.headers.get("x-tc-token", "") != token:
            raise Refusal("AuthFailure.TokenFailure", f"token {request.headers.get('x-tc-token')}")
        lines = f"content-type:{request.headers['content-type']}\nhost:{request.headers['host']}\n"
        payload = hashlib.sha256(request.body).hexdigest()
        canonical = f"POST\n/\n\n{lines}\n{said['SignedHeaders']}\n{payload}"
        text = f"{kind}\n{stamp}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
        key = f"TC3{secret}".encode()
        for part in (day, "vpc", "tc3_request"):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        if said["Signature"] != hmac.new(key, text.encode(), hashlib.sha256).hexdigest():
            raise Refusal("AuthFailure.SignatureFailure", f"The provided credentials could not be validated. {name}")
        self.signers.add(name)

    def _describe(self, action: str, given: Mapping[str, Any]) -> dict[str, Any]:
        kind = str if action == "DescribeRouteTables" else int
        if not isinstance(given["Offset"], kind) or not isinstance(given["Limit"], kind):
            raise Refusal("InvalidParameter", f"Offset and Limit of {action} are {kind.__name__}")
        if given["Filters"] != [{"Name": "vpc-id", "Values": ["vpc-1"]}] or not 1 <= int(given["Limit"]) <= 100:
            raise Refusal("InvalidParameter.Filters")
        first, size = int(given["Offset"]), int(given["Limit"])
        if action == "DescribeNetworkInterfaces":
            some = self.interfaces[first : first + size]
            return {"NetworkInterfaceSet": some, "TotalCount": len(self.interfaces)}
        tables = [self._table("rtb-main", [], main=True), self._table("rtb-b", ["subnet-2"], main=False)]
        return {"RouteTableSet": tables[first : first + size], "TotalCount": len(tables)}

    def _table(self, name: str, subnets: list[str], *, main: bool) -> dict[str, Any]:
        local = {
            "RouteId": 1, "RouteType": "NETD", "DestinationCidrBlock": "10.99.0.0/16", "GatewayType": "LOCAL_GATEWAY",
            "GatewayId": "Local", "RouteDescription": "", "Enabled": True,
        }  # fmt: skip
        return {
            "VpcId": "vpc-1", "RouteTableId": name, "Main": main,
            "AssociationSet": [{"SubnetId": subnet, "RouteTableId": name} for subnet in subnets],
            "RouteSet": [local, *(r for r in self.routes if r["RouteTableId"] == name)],
        }  # fmt: skip

    def _create(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """All or none."""
        there = [r for r in self.routes if r["RouteTableId"] == given["RouteTableId"]]
        for row in given["Routes"]:
            refuse_unknown(row, "RouteDescription Enabled", _ROUTE)
            for other in there:
                if other["DestinationCidrBlock"] == row["DestinationCidrBlock"]:
                    is_same = other["GatewayId"] == row["GatewayId"]
                    raise Refusal(
                        "InvalidParameterValue.Duplicate" if is_same else "UnsupportedOperation.EcmpWithUserRoute"
                    )
            self._require_hop(row)
        if len(there) + len(given["Routes"]) > self.quota:
            raise Refusal("LimitExceeded")
        for row in given["Routes"]:
            mark, enabled = row.get("RouteDescription", ""), row.get("Enabled", True)
            self.route(row["DestinationCidrBlock"], row["GatewayId"], given["RouteTableId"], mark, Enabled=enabled)
        return {"TotalCount": len(given["Routes"]), "RouteTableSet": []}

    def _require_hop(self, row: Mapping[str, Any]) -> None:
        addresses = {a["PrivateIpAddress"] for each in self.interfaces for a in each["PrivateIpAddressSet"]}
        if row["GatewayType"] != "NORMAL_CVM" or row["GatewayId"] not in addresses:
            raise Refusal("InvalidParameterValue.RouteNextHopInvalid")

    def _known(self, table: str, number: Any) -> dict[str, Any]:
        found = next((r for r in self.routes if (r["RouteTableId"], r["RouteId"]) == (table, number)), None)
        if found is None:
            raise Refusal("ResourceNotFound", f"[RouteId:{number}]")
        return found

    def _replace(self, given: Mapping[str, Any]) -> dict[str, Any]:
        for row in given["Routes"]:
            refuse_unknown(row, "RouteDescription Enabled", f"RouteId {_ROUTE}")
            self._known(given["RouteTableId"], row["RouteId"])
            self._require_hop(row)
        for row in given["Routes"]:
            self._known(given["RouteTableId"], row["RouteId"]).update(row)
        return {"OldRouteSet": [], "NewRouteSet": []}

    def _delete(self, given: Mapping[str, Any]) -> dict[str, Any]:
        for row in given["Routes"]:
            refuse_unknown(row, "", "RouteId")
        gone = [self._known(given["RouteTableId"], row["RouteId"]) for row in given["Routes"]]
        self.routes = [each for each in self.routes if each not in gone]
        return {"RouteSet": []}

    def _enable(self, given: Mapping[str, Any]) -> dict[str, Any]:
        for number in given["RouteIds"]:
            self._known(given["RouteTableId"], number)["Enabled"] = True
        return {}
