"""aws-vpc: routes in VPC route tables, whose targets are network interfaces. The only module that imports boto3.

A route has no tag: it is ours if this program has seen it carry a lease. flannel looks at the node that it runs on;
this looks at all nodes, and so also knows the tables of subnets in other availability zones.
"""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_address, ip_network
from typing import Any, Final

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    HTTPClientError,
)
from botocore.exceptions import ConnectionError as NoConnection
from botocore.parsers import ResponseParserError

from flannelette.services.cloud.providers.provider import Metadata, understood
from flannelette.services.cloud.routes import Change, CloudError, Failure, Route, RouteTables, Table, Target, Verb
from flannelette.services.core.backend_types import AwsOptions
from flannelette.services.core.family import Address

MOST_ROUTES: Final = 500
"""AWS' default quota of a table since June 2025."""
_MOST_VALUES: Final = 200
"""Largest number of values in a filter."""
_TARGETS: Final = (
    "NetworkInterfaceId", "InstanceId", "GatewayId", "NatGatewayId", "TransitGatewayId", "VpcPeeringConnectionId",
    "LocalGatewayId", "CarrierGatewayId", "EgressOnlyInternetGatewayId", "CoreNetworkArn",
)  # fmt: skip
_PAGE: Final = "docs/backends.md#aws-vpc"
_TROUBLES: Final = {
    Failure.WAIT: (
        "RequestLimitExceeded Throttling ThrottlingException Unavailable ServiceUnavailable InternalError "
        "InternalFailure"
    ),
    Failure.DENIED: (
        "UnauthorizedOperation AuthFailure InvalidClientTokenId ExpiredToken RequestExpired SignatureDoesNotMatch "
        "UnrecognizedClientException OptInRequired AccessDenied Blocked PendingVerification "
        "InvalidRouteTableID.NotFound "
        "InvalidRouteTableId.Malformed InvalidVpcID.NotFound"
    ),
    Failure.FULL: "RouteLimitExceeded",
    Failure.CHANGED: "RouteAlreadyExists InvalidRoute.NotFound InvalidNetworkInterfaceID.NotFound",
}
_KINDS: Final = {code: trouble for trouble, codes in _TROUBLES.items() for code in codes.split()}
_CURES: Final = {
    "UnauthorizedOperation": f"give the instance role the policy of {_PAGE}",
    "AccessDenied": f"give the instance role the policy of {_PAGE}",
    "InvalidRouteTableID.NotFound": "correct RouteTableID in the network configuration, or the region (AWS_REGION)",
    "RouteLimitExceeded": "have AWS raise the quota `Routes per route table` of VPC",
    "ExpiredToken": "renew the credentials; those of an instance role renew themselves",
    "RequestExpired": "renew the credentials, or set the clock of this host",
    "AuthFailure": "correct the credentials, or the clock of this host",
    "InvalidClientTokenId": "correct the credentials",
    "NoCredentialsError": f"give the instance a role ({_PAGE}), or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "EndpointConnectionError": "correct the region (AWS_REGION), or let this host reach the API of EC2",
}


_NO_ANSWER: Final = (HTTPClientError, NoConnection, ResponseParserError)
_ENCODED: Final = " Encoded authorization failure message"
"""Begins what only `aws sts decode-authorization-message` reads, another text each time."""


class Aws:
    """The VPC of a network configuration. `AWS_REGION`, credentials and endpoints are boto3's own."""

    batch = 1

    def __init__(self, options: AwsOptions, *, endpoint: str, metadata: str, most: int, mark: str) -> None:
        self._table_ids = options.table_ids
        self._most = most or MOST_ROUTES
        self._metadata = Metadata(
            metadata or os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or "http://169.254.169.254",
            "set RouteTableID and AWS_REGION",
        )
        with _translated("profile"):
            session = boto3.session.Session()
            region = os.environ.get("AWS_REGION") or session.region_name
        region = region or self._metadata.aws_session().text("/latest/meta-data/placement/region")
        waits = Config(connect_timeout=5, read_timeout=15, retries={"mode": "standard", "max_attempts": 2})
        with _translated("region"):
            self._ec2: Any = session.client("ec2", region_name=region, endpoint_url=endpoint or None, config=waits)
        self._vpc = ""
        self._region = region

    @understood
    def look(self, addresses: Collection[Address]) -> RouteTables:
        """The tables that RouteTableID names; without it, those of the subnets that nodes are in."""
        if self._table_ids:
            found = self._pages("describe_route_tables", "RouteTables", RouteTableIds=list(self._table_ids))
            vpcs = sorted({table["VpcId"] for table in found})
        else:
            vpcs = [self._own_vpc()]
            found = self._pages("describe_route_tables", "RouteTables", Filters=[_filter("vpc-id", vpcs)])
            if not found:
                raise CloudError(
                    Failure.DENIED, "no table", f"region {self._region} has no route table of {vpcs[0]}",
                    "correct the region (AWS_REGION)",
                )  # fmt: skip
        interfaces: list[Any] = []
        texts = sorted(map(str, addresses))
        for first in range(0, len(texts), _MOST_VALUES):
            some = _filter("addresses.private-ip-address", texts[first : first + _MOST_VALUES])
            filters = [_filter("vpc-id", vpcs), some]
            interfaces += self._pages("describe_network_interfaces", "NetworkInterfaces", Filters=filters)
        targets = {
            ip_address(row["PrivateIpAddress"]): Target(each["NetworkInterfaceId"], not each["SourceDestCheck"])
            for each in interfaces
            for row in each["PrivateIpAddresses"]
        }
        used = set(self._table_ids) or _tables_of({each["SubnetId"] for each in interfaces}, found)
        tables = [
            Table(name, tuple(_routes(each)), self._most, name in used)
            for each in found
            for name in (each["RouteTableId"],)
        ]
        return RouteTables(tables, {address: targets[address] for address in addresses if address in targets})

    @understood
    def apply(self, changes: Sequence[Change]) -> Mapping[Change, CloudError]:
        """One call of EC2."""
        (change,) = changes
        route = change.route
        where = {"RouteTableId": route.table, "DestinationCidrBlock": str(route.destination)}
        if change.verb is Verb.FORWARD:
            off = {"NetworkInterfaceId": route.target, "SourceDestCheck": {"Value": False}}
            self._call("modify_network_interface_attribute", **off)
        elif change.verb is Verb.DELETE:
            self._call("delete_route", **where)
        else:
            verb = "create_route" if change.verb is Verb.CREATE else "replace_route"
            self._call(verb, **where, NetworkInterfaceId=route.target)
        return {}

    def command(self, change: Change) -> str:
        """A line for the AWS CLI."""
        route, begin = change.route, f"aws ec2 --region {self._region}"
        if change.verb is Verb.FORWARD:
            interface = f"--network-interface-id {route.target}"
            return f"{begin} modify-network-interface-attribute {interface} --no-source-dest-check"
        where = f"--route-table-id {route.table} --destination-cidr-block {route.destination}"
        to = "" if change.verb is Verb.DELETE else f" --network-interface-id {route.target}"
        return f"{begin} {change.verb.value}-route {where}{to}"

    def _own_vpc(self) -> str:
        if not self._vpc:
            own = self._metadata.aws_session()
            mac = own.text("/latest/meta-data/mac")
            self._vpc = own.text(f"/latest/meta-data/network/interfaces/macs/{mac}/vpc-id")
        return self._vpc

    def _pages(self, operation: str, key: str, **arguments: Any) -> list[Any]:
        with _translated(operation):
            return [each for page in self._ec2.get_paginator(operation).paginate(**arguments) for each in page[key]]

    def _call(self, operation: str, **arguments: Any) -> None:
        with _translated(operation):
            getattr(self._ec2, operation)(**arguments)


class _translated:  # noqa: N801 - reads as a statement
    """Errors of boto3 as CloudError, with the code of AWS and what to do."""

    def __init__(self, operation: str) -> None:
        self._operation = "".join(word.title() for word in operation.split("_"))

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, ClientError):
            said = error.response.get("Error", {})
            code, message = str(said.get("Code", "")), str(said.get("Message", "")).partition(_ENCODED)[0]
            trouble = _KINDS.get(code, Failure.REFUSED)
            if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) >= 500:
                trouble = Failure.WAIT
        elif isinstance(error, BotoCoreError | ResponseParserError | ValueError):  # also of what a URL cannot be
            code, message = type(error).__name__, str(error)
            trouble = Failure.WAIT if isinstance(error, _NO_ANSWER) else Failure.DENIED
        else:
            return
        raise CloudError(trouble, f"{self._operation}: {code}", message, _CURES.get(code, "")) from None


def _filter(name: str, values: Iterable[str]) -> dict[str, Any]:
    return {"Name": name, "Values": list(values)}


def _tables_of(subnets: Collection[str], tables: Sequence[Any]) -> set[str]:
    """The tables of these subnets: those that are associated with them, and for the others the main one."""
    by_subnet = {a.get("SubnetId"): t["RouteTableId"] for t in tables for a in t["Associations"]}
    main = next((t["RouteTableId"] for t in tables for a in t["Associations"] if a.get("Main")), "")
    return {by_subnet.get(subnet, main) for subnet in subnets}


def _routes(table: Any) -> Iterator[Route]:
    """The IPv4 routes that somebody has created."""
    for each in table["Routes"]:
        destination = each.get("DestinationCidrBlock")
        if destination is None or each.get("Origin", "CreateRoute") != "CreateRoute":
            continue
        target = next((str(each[key]) for key in _TARGETS if each.get(key)), "?")
        yield Route(table["RouteTableId"], ip_network(destination), target, each.get("State", "active"))
