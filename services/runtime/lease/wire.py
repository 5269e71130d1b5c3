"""Conversion between domain types and the protobuf messages of `flannelette.lease.v1`."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from sys import intern
from typing import TypeAlias

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.core.addresses import (
    exact_cidr,
    format_address,
    format_network,
    never_public,
    parse_address,
    parse_cidr,
)
from flannelette.services.core.conditions import MOST_REPORTED, Condition
from flannelette.services.core.errors import InvalidInput, Unavailable
from flannelette.services.core.family import FAMILIES, Address, Network
from flannelette.services.core.leases.lease import (
    BackendData,
    FailedLease,
    FamilyRequest,
    Lease,
    LeaseRequest,
    OpaqueData,
    Progress,
    Subnet,
    VxlanData,
    WireguardData,
)
from flannelette.services.core.leases.table import (
    Change,
    NodeOverrides,
    PublicIpOverride,
    PublicIpOverrides,
    Removed,
    Step,
    StoreStatus,
    Upserted,
)
from flannelette.services.core.limits import LONGEST, LONGEST_DATA, LONGEST_NAME, nearest_time, seconds_of, unix_time
from flannelette.services.core.network import NetworkConfig, parse_network
from flannelette.services.runtime.conditions import condition_to_proto, conditions_from, older_finding


def lease_to_proto(lease: Lease) -> pb.Lease:
    """The lease as a message."""
    message = pb.Lease()
    _fill(message, lease)
    return message


def lease_from_proto(message: pb.Lease) -> Lease:
    """The lease in a message. Raises InvalidInput."""
    parts = message.subnets[:]  # takes a third of the time that its own iterator takes
    if max(len(message.name), len(message.node), len(message.backend_type)) > LONGEST_NAME:
        raise InvalidInput(f"the name, the node or the type of a lease is longer than {LONGEST_NAME} characters")
    if len(parts) > len(FAMILIES):
        raise InvalidInput(f"the lease has {len(parts)} subnets: at most one a family")
    return Lease(
        message.name,
        message.node,
        tuple([Subnet(_network(s.cidr), _address(s.public_address), _data_from_proto(s)) for s in parts]),
        intern(message.backend_type),
        unix_time(message.expire_time, "expire_time") if message.HasField("expire_time") else None,
        message.reserved,
        message.claim_order,
        _short(message.cluster),
    )


def request_to_proto(request: LeaseRequest) -> pb.AcquireLeaseRequest:
    """What a node asks for, as a message."""
    return pb.AcquireLeaseRequest(
        node=request.node,
        backend_type=request.backend_type,
        subnets=[_part_to_proto(part) for part in request.parts],
        machine=request.machine,
    )


def request_from_proto(message: pb.AcquireLeaseRequest) -> LeaseRequest:
    """What a node asks for. Raises InvalidInput, naming the field."""
    parts = []
    for subnet in message.subnets:
        address = _address(subnet.public_address)
        if address is None:
            raise InvalidInput("subnets.public_address is empty: give the address that peers send to")
        if words := never_public(address):
            raise InvalidInput(f"subnets.public_address {address} is {words}: give the address that peers send to")
        previous = parse_cidr(subnet.cidr) if subnet.cidr else None
        if previous and previous.version != address.version:
            raise InvalidInput(f"subnets.cidr {previous} and public_address {address} are of two address families")
        parts.append(FamilyRequest(address, _data_from_proto(subnet), previous))
    parts.sort(key=lambda part: part.public_address.version)
    if not parts or len({part.public_address.version for part in parts}) != len(parts):
        raise InvalidInput("subnets must have one entry for each enabled address family")
    return LeaseRequest(message.node, message.backend_type, tuple(parts), machine=message.machine)


def network_to_proto(network: NetworkConfig) -> pb.Network:
    """The network configuration as a message."""
    return pb.Network(
        families=[
            pb.NetworkFamily(
                cidr=str(n.cidr),
                subnet_length=n.subnet_length,
                subnet_min=str(n.subnet_min or ""),
                subnet_max=str(n.subnet_max or ""),
            )
            for n in network.families
        ],
        backend_type=network.backend_type,
        enable_nftables=network.enable_nftables,
        json=network.source,
        warnings=network.warnings,
        beside=[format_network(cidr) for cidr in (*network.beside, *network.imported)],
        imported=[format_network(cidr) for cidr in network.imported],
    )


def network_from_proto(message: pb.Network) -> NetworkConfig:
    """The network configuration in a message, parsed again from its JSON. Raises InvalidInput."""
    network = parse_network(message.json, leases_subnets=all(n.subnet_length for n in message.families))
    imported = tuple(map(_network, message.imported))
    beside = tuple(_network(text) for text in message.beside if text not in message.imported)
    return replace(network, beside=beside, imported=imported) if message.beside else network


def progress_to_proto(progress: Progress) -> pb.ReportProgressRequest:
    """A progress report as a message to be sent now: it has an age, because the clocks of two machines may differ."""
    message = pb.ReportProgressRequest(
        node=progress.node,
        cursor=progress.cursor,
        failed=map(failed_to_proto, progress.failed),
        failed_count=progress.failed_count,
        findings=map(finding_to_proto, progress.findings),
        conditions=map(condition_to_proto, progress.findings),
        version=progress.version,
        machine=progress.machine,
    )
    if progress.reached_at is not None:
        message.age.FromMicroseconds(max(0, int((time.monotonic() - progress.reached_at) * 1e6)))
    return message


def progress_from_proto(message: pb.ReportProgressRequest) -> Progress:
    """The progress report in a message received now. Raises InvalidInput, naming the field."""
    failed = tuple(FailedLease(lease.name, lease.reason) for lease in message.failed)
    reached_at = time.monotonic() - seconds_of(message.age, "age")
    return Progress(
        message.node,
        message.cursor,
        failed,
        max(message.failed_count, len(failed)),
        reached_at,
        tuple(conditions_from(message.conditions[:MOST_REPORTED], message.findings[:MOST_REPORTED])),
        message.version,
        message.machine,
    )


def failed_to_proto(lease: FailedLease) -> pb.FailedLease:
    """A lease that a node could not program, as a message."""
    return pb.FailedLease(name=lease.name, reason=lease.reason)


def status_to_proto(status: StoreStatus) -> pb.StoreStatus:
    """The store's status as a message."""
    return pb.StoreStatus(kind=status.kind, connected=status.connected, error=status.error)


def step_to_proto(step: Step) -> pb.WatchLeasesResponse:
    """One step of the table as a message."""
    message = pb.WatchLeasesResponse(
        reset=step.reset,
        network=network_to_proto(step.network) if step.network else None,
        network_error=step.network_error,
        store=status_to_proto(step.store) if step.store else None,
        synced=step.synced,
        cursor=step.cursor,
        lost=step.lost,
        choices=_overrides_to_proto(step.overrides) if step.overrides else None,
        awaited=pb.AwaitedClusters(names=sorted(step.awaited)) if step.awaited is not None else None,
    )
    for change in step.changes:
        _add_change(message, change)
    return message


def step_from_proto(message: pb.WatchLeasesResponse) -> Step:
    """The step in a message. Raises InvalidInput."""
    return Step(
        reset=message.reset,
        changes=tuple(map(_change_from_proto, message.changes)),
        network=network_from_proto(message.network) if message.HasField("network") else None,
        network_error=message.network_error,
        store=StoreStatus(message.store.kind, message.store.connected, message.store.error)
        if message.HasField("store")
        else None,
        synced=message.synced,
        cursor=message.cursor,
        lost=message.lost,
        overrides=_overrides_from_proto(message.choices) if message.HasField("choices") else None,
        awaited=frozenset(message.awaited.names) if message.HasField("awaited") else None,
    )


def step_to_bytes(step: Step) -> bytes:
    """The step as bytes. The bytes of several steps, concatenated, are one step, where lease.proto allows that."""
    return step_to_proto(step).SerializeToString()


def change_to_bytes(change: Change) -> bytes:
    """The step of one change as bytes; in a third of the time, as there may be one for each lease of a table."""
    message = pb.WatchLeasesResponse()
    _add_change(message, change)
    return message.SerializeToString()


def leases_to_bytes(leases: Iterable[Lease]) -> Iterator[tuple[str, bytes]]:
    """The name of each lease, and the step that has it alone, as `change_to_bytes`."""
    message = pb.WatchLeasesResponse()  # one for all of them: to make it takes a fifth of the time
    part = message.changes.add().upserted
    for lease in leases:
        part.Clear()
        _fill(part, lease)
        yield lease.name, message.SerializeToString()


def step_from_bytes(data: bytes) -> Step:
    """The step in these bytes. Raises InvalidInput."""
    try:
        return step_from_proto(pb.WatchLeasesResponse.FromString(data))
    except DecodeError as error:
        raise InvalidInput(f"the message of the lease service cannot be parsed: {error}") from None


def _overrides_to_proto(overrides: NodeOverrides) -> pb.Choices:
    message = pb.Choices(complete=overrides.complete)
    for node, addresses in overrides.nodes.items():
        entry = message.nodes.add(node=node)
        for address in addresses:
            part = entry.public_ip if address.version == 4 else entry.public_ipv6
            part.address, part.source = address.text, address.source
    return message


def _overrides_from_proto(message: pb.Choices) -> NodeOverrides:
    return NodeOverrides({entry.node: _addresses_from_proto(entry) for entry in message.nodes}, message.complete)


def _addresses_from_proto(entry: pb.NodeChoice) -> PublicIpOverrides:
    parts = {4: entry.public_ip, 6: entry.public_ipv6}
    return tuple(
        PublicIpOverride(f.version, part.address, part.source) for f in FAMILIES if (part := parts[f.version]).address
    )


def _add_change(message: pb.WatchLeasesResponse, change: Change) -> None:
    if isinstance(change, Upserted):
        _fill(message.changes.add().upserted, change.lease)
    else:
        message.changes.add().removed = change.name


def _change_from_proto(message: pb.Change) -> Change:
    if message.HasField("upserted"):
        return Upserted(lease_from_proto(message.upserted))
    return Removed(message.removed)


# A snapshot has many leases: each is written in place, which saves a copy.
def _fill(message: pb.Lease, lease: Lease) -> None:
    message.name, message.node, message.backend_type = lease.name, lease.node, lease.backend_type
    if lease.reserved or lease.claim_order or lease.cluster:  # most leases have none of them
        message.reserved, message.claim_order, message.cluster = lease.reserved, lease.claim_order, lease.cluster
    for subnet in lease.subnets:
        part = message.subnets.add()
        part.cidr = format_network(subnet.cidr)
        if subnet.public_address is not None:
            part.public_address = format_address(subnet.public_address)
        _fill_data(part, subnet.data)
    if lease.expires_at is not None:
        milliseconds, moment = int(lease.expires_at * 1000), message.expire_time
        moment.seconds, moment.nanos = milliseconds // 1000, milliseconds % 1000 * 1_000_000


def _part_to_proto(part: FamilyRequest) -> pb.Subnet:
    message = pb.Subnet(cidr=str(part.previous or ""), public_address=str(part.public_address))
    _fill_data(message, part.data)
    return message


def _fill_data(message: pb.Subnet, data: BackendData | None) -> None:
    if isinstance(data, VxlanData):  # `match` takes twice as long
        vxlan = message.vxlan
        vxlan.vni, vxlan.mac = data.vni, data.mac
    elif isinstance(data, WireguardData):
        wireguard = message.wireguard
        wireguard.public_key, wireguard.port = data.public_key, data.port
    elif data is not None:
        message.opaque_json = data.json


def _data_from_proto(message: pb.Subnet) -> BackendData | None:
    if message.HasField("vxlan"):
        vxlan = message.vxlan
        return VxlanData(vxlan.vni, _short(vxlan.mac))
    if message.HasField("wireguard"):
        wireguard = message.wireguard
        return WireguardData(_short(wireguard.public_key), wireguard.port)
    return OpaqueData(_short(message.opaque_json, LONGEST_DATA)) if message.HasField("opaque_json") else None


def _short(text: str, most: int = LONGEST_NAME) -> str:
    if len(text) > most:
        raise InvalidInput(f"the backend's data of a lease have {len(text)} characters: at most {most} are taken")
    return text


def _network(text: str) -> Network:
    network = exact_cidr(text)
    if network is None:
        raise InvalidInput(f"{text!r} is not a subnet: write it like 10.5.1.0/24")
    return network


def _address(text: str) -> Address | None:
    if not text:
        return None
    address = parse_address(text)
    if address is None:
        raise InvalidInput(f"{text!r} is not an IP address")
    return address


def finding_to_proto(condition: Condition) -> pb.Finding:
    """A condition as a message."""
    return older_finding(pb.Finding, condition, evidence=condition.evidence)


Answer: TypeAlias = pb.AcquireLeaseResponse | pb.RenewLeaseResponse


def time_left(lease: Lease) -> Duration | None:
    """The remaining time of a lease, by this machine's clock; None: the lease does not expire."""
    if lease.expires_at is None:
        return None
    left = Duration()
    left.FromMilliseconds(round((lease.expires_at - time.time()) * 1000))
    return left


def held_lease(answer: Answer) -> Lease:
    """The lease in an answer, with its end by this machine's clock, in whole seconds.

    Raises Unavailable for an answer that cannot be read, because the request is not at fault.
    """
    try:
        lease = lease_from_proto(answer.lease)
        if not answer.HasField("time_left"):
            return lease
        left = seconds_of(answer.time_left, "time_left", -LONGEST)
    except InvalidInput as error:
        raise Unavailable(f"the lease service's answer cannot be read: {error}") from None
    return lease.with_time(nearest_time(round(time.time() + left)))
