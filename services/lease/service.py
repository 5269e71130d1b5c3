"""The gRPC face of the lease service: checks requests, translates, calls, and makes the answers.

What a node publishes reaches every node, so AcquireLease is checked down to the backend data. A decision about leases
belongs into the other modules.
"""

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from ipaddress import ip_address
from typing import Any, Final

import grpc
import grpc.aio

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.lease.v1 import lease_pb2_grpc
from flannelette.services.core.addresses import parse_cidr
from flannelette.services.core.errors import (
    Exhausted,
    FlanneletteError,
    Forbidden,
    InvalidInput,
    NameTaken,
    NotFound,
    NotYet,
    Unavailable,
)
from flannelette.services.core.family import Address, Network
from flannelette.services.core.formats.gojson import GoObject
from flannelette.services.core.frozen import frozen
from flannelette.services.core.ipam import Reclaim
from flannelette.services.core.leases.flannel_json import format_data, parse_data
from flannelette.services.core.leases.lease import BackendData, Lease, LeaseRequest, OpaqueData
from flannelette.services.core.leases.network_moves import PendingMove, hands_out, pending_moves
from flannelette.services.core.leases.table import Step
from flannelette.services.core.limits import LONGEST_DATA, MOST_LEASES, seconds_of
from flannelette.services.lease import metrics
from flannelette.services.lease.admission import StorePipeline
from flannelette.services.lease.events import LeaseEventKind, LeaseJournal, Requests
from flannelette.services.lease.imports.cluster import Imports, watch_exported
from flannelette.services.lease.imports.policy import ALL_OWN, Export
from flannelette.services.lease.progress import NOTHING_YET, NodeProgress, Report
from flannelette.services.lease.stores.store import KnowsExpiry, Reclaimed, RefusalKind, Store
from flannelette.services.lease.watch import (
    PAUSE,
    Broker,
    end_if_stalled,
    follow_all,
    follow_own,
    watch_all,
    watch_own,
)
from flannelette.services.runtime.conditions import condition_to_proto
from flannelette.services.runtime.events import MOST_NAMED, Event, Reading, RecordedEvent, Subject, watch
from flannelette.services.runtime.lease.wire import (
    failed_to_proto,
    finding_to_proto,
    lease_to_proto,
    network_to_proto,
    progress_from_proto,
    request_from_proto,
    status_to_proto,
    time_left,
)
from flannelette.services.runtime.process.version import version
from flannelette.services.runtime.rpc.interceptor import code_of
from flannelette.services.runtime.telemetry.health import Health
from flannelette.services.runtime.telemetry.logs import get_logger

log = get_logger()

_LONGEST_TYPE: Final = 64
_MACHINE: Final = re.compile(r"[A-Za-z0-9-]{1,64}", re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?", re.ASCII)


def check_name(node: str) -> None:
    """Raises InvalidInput for what is neither a node name nor empty."""
    if node and not _NAME.fullmatch(node):
        raise InvalidInput(
            f"node {node!r} is not a valid node name: use letters, digits, dots, dashes and underscores, at most 253"
        )


def machine_of(
    request: pb.WatchLeasesRequest | pb.AcquireLeaseRequest | pb.RenewLeaseRequest | pb.ReportProgressRequest,
) -> str:
    """The token of the machine that asks, empty: unknown. Raises InvalidInput for what is no token."""
    if request.machine and not _MACHINE.fullmatch(request.machine):
        raise InvalidInput("machine is not a token: use at most 64 letters, digits and dashes, or leave it empty")
    return request.machine


@frozen
class Identity:
    """The node that this process serves."""

    node: str = ""
    """Name of the node; empty: any (central)."""

    def any_node(self, asked: str) -> str:
        """The node of a request that need not name one; empty only on a central service.

        Raises Forbidden for another node's than ours, InvalidInput for what is no name.
        """
        check_name(asked)
        if self.node and asked not in ("", self.node):
            raise Forbidden(
                f"this lease service serves node {self.node} only, not {asked}: leave node empty, or ask the lease "
                f"service of {asked}"
            )
        return asked or self.node

    def one_node(self, asked: str) -> str:
        """The node of a request that is about one. Raises InvalidInput also when there is none, Forbidden."""
        node = self.any_node(asked)
        if not node:
            raise InvalidInput("node is empty: this lease service is central, so say for which node (--node)")
        return node


def checked_request(message: pb.AcquireLeaseRequest, node: str) -> LeaseRequest:
    """The request of this node. Raises InvalidInput, naming the field."""
    request = replace(request_from_proto(message), machine=machine_of(message))
    if len(request.backend_type) > _LONGEST_TYPE or not request.backend_type.isprintable():
        raise InvalidInput(f"backend_type is not a valid name: use at most {_LONGEST_TYPE} characters, all printable")
    parts = tuple(replace(part, data=_checked(part.data, request.backend_type)) for part in request.parts)
    return replace(request, node=node, parts=parts)


def subnets_to_reserve(request: pb.ReserveSubnetRequest) -> tuple[Network, ...]:
    """The subnets, IPv4 first. Raises InvalidInput, naming the field."""
    check_name(request.node)
    found = []
    for text in request.cidrs:
        cidr = parse_cidr(text)
        if cidr is None or str(cidr) != text.lower():
            raise InvalidInput(f"cidrs: {text!r} is not a subnet: write it like {cidr or '10.5.7.0/24'}")
        found.append(cidr)
    return tuple(sorted(found, key=lambda cidr: cidr.version))


def leases_to_reclaim(request: pb.ReclaimLeasesRequest) -> Reclaim:
    """What is wanted. Raises InvalidInput, naming the field."""
    check_name(request.node)
    for name in request.names:
        cluster, slash, rest = name.partition("/")
        if slash:
            raise InvalidInput(f"{name} may be imported from cluster {cluster}: reclaim {rest} there")
    seconds = seconds_of(request.unseen_for, "unseen_for") if request.HasField("unseen_for") else None
    return Reclaim(tuple(dict.fromkeys(request.names)), request.node, seconds)


def _checked(data: BackendData | None, backend_type: str) -> BackendData | None:
    """The data as every reader will parse it from flannel's JSON."""
    if data is None:
        return None
    text = _compact(data.json) if isinstance(data, OpaqueData) else format_data(data)
    if len(text) > LONGEST_DATA:
        raise InvalidInput(
            f"subnets.backend_data has {len(text)} characters: at most {LONGEST_DATA} go to every node"
        )
    checked = parse_data(text, backend_type, "subnets.backend_data")
    if not isinstance(data, OpaqueData) and type(checked) is not type(data):
        raise InvalidInput(f"subnets.backend_data is not that of backend_type {backend_type!r}: make them agree")
    return checked


def _compact(text: str) -> str:
    """The one JSON value in the text, so that it cannot smuggle in other members of the object it becomes part of."""
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"subnets.opaque_json is not valid JSON: {error}") from None
    return GoObject.parse(f'{{"value":{text}}}', "subnets.opaque_json").compact("value") or "null"


SERVICE: Final = "flannelette.lease.v1.LeaseService"

_READ_OWN_WRITE_SECONDS: Final = 2.0
_LONGEST_WAIT_SECONDS: Final = 60.0

Context = grpc.aio.ServicerContext[Any, Any]
_KINDS: Final = {
    RefusalKind.UNREADABLE: pb.REFUSAL_KIND_UNREADABLE,
    RefusalKind.OUTSIDE_NETWORK: pb.REFUSAL_KIND_OUTSIDE_NETWORK,
}


def add_to_server(service: "LeaseService", server: grpc.aio.Server) -> None:
    """Registers the service; WatchLeases without a serializer, because its messages are bytes already."""
    lease_pb2_grpc.add_LeaseServiceServicer_to_server(service, server)
    watch: grpc.RpcMethodHandler[pb.WatchLeasesRequest, bytes] = grpc.unary_stream_rpc_method_handler(
        service.WatchLeases,
        request_deserializer=pb.WatchLeasesRequest.FromString,
        response_serializer=None,
    )
    server.add_registered_method_handlers(SERVICE, {"WatchLeases": watch})


class LeaseService(lease_pb2_grpc.LeaseServiceServicer):
    """Every call's guarantees and errors stand in lease.proto."""

    def __init__(
        self,
        store: Store,
        broker: Broker,
        pipeline: StorePipeline,
        identity: Identity,
        health: Health,
        most: int = MOST_LEASES,
        stopping: asyncio.Event | None = None,
        imports: Imports | None = None,
        export: Export = ALL_OWN,
    ) -> None:
        self._store = store
        self._broker = broker
        self._pipeline = pipeline
        self._identity = identity
        self._health = health
        self._imports = imports or Imports((), broker)
        self._export = export
        self._most = most
        """Leases that are given out."""
        self._started = time.time_ns()
        self._moves = PendingMoves(broker)
        self._requests = Requests(broker.journal)
        self._stopping = stopping or asyncio.Event()
        broker.connected_nodes.on_refusal = self._note_refused_stream

    def WatchLeases(self, request: pb.WatchLeasesRequest, context: Context) -> AsyncIterator[Any]:
        """Yields serialised messages: see `add_to_server`."""
        if request.view == pb.VIEW_EXPORTED:
            return end_if_stalled(watch_exported(self._broker, self._export.shows))
        if request.view == pb.VIEW_OWN:
            node = self._identity.one_node(request.node)
            machine = machine_of(request)
            return end_if_stalled(watch_own(self._broker, node, is_dataplane=request.relayed, machine=machine))
        self._identity.any_node(request.node)
        node = request.node if request.view == pb.VIEW_ALL else ""
        is_relay = request.relayed and not node
        machine = machine_of(request)
        messages = watch_all(self._broker, request.cursor, node, machine=machine, is_relay=is_relay, pause=PAUSE)
        return end_if_stalled(messages)

    def follow(self, request: pb.WatchLeasesRequest) -> AsyncGenerator[Step, None]:
        """WatchLeases for the dataplane and masq of this node in this process. Raises the same errors."""
        machine = machine_of(request)
        if request.view == pb.VIEW_OWN:
            node = self._identity.one_node(request.node)
            return follow_own(self._broker, node, is_dataplane=request.relayed, machine=machine)
        self._identity.any_node(request.node)
        return follow_all(self._broker, request.cursor, request.node, machine)

    async def ListLeases(self, request: pb.ListLeasesRequest, context: Context) -> pb.ListLeasesResponse:
        """The filter may be any node, on any service: all that it leaves out could be listed without it."""
        check_name(request.node)
        self._require_table()
        table = self._broker.table
        leases = self._broker.leases_by_node.of(request.node) if request.node else table.leases
        if request.address:
            leases = leases_of_address(leases, request.address)
        times = await self._expiry_times() if request.expiry else {}
        leases = {**leases, **{name: leases[name].with_time(when) for name, when in times.items() if name in leases}}
        return pb.ListLeasesResponse(
            leases=[lease_to_proto(leases[name]) for name in sorted(leases)],
            network=network_to_proto(table.network) if table.network else None,
            network_error=table.network_error,
            store=status_to_proto(self._broker.store_status),
            cursor=self._broker.change_log.cursor,
        )

    async def _expiry_times(self) -> Mapping[str, float]:
        """Expiry times of leases, as far as the store knows them.

        If the store is away there are none, and the table has the rest.
        """
        if isinstance(self._store, KnowsExpiry):
            with suppress(Unavailable):
                return await self._store.expiry_times()
        return {}

    async def AcquireLease(self, request: pb.AcquireLeaseRequest, context: Context) -> pb.AcquireLeaseResponse:
        """Answers when WatchLeases shows the lease, or 2 s later: it is in the store either way."""
        code = grpc.StatusCode.CANCELLED
        try:
            wanted = checked_request(request, self._identity.one_node(request.node))
            if len(self._broker.table.leases) >= self._most and not self._broker.leases_by_node.of(wanted.node):
                imported = len(self._broker.foreign.leases)
                more = f" ({imported} of them imported)" if imported else ""
                raise Exhausted(f"there are {self._most} leases{more}, and no more are given: raise --max-leases")
            self._pipeline.require_calm(wanted)
            lease = await self._store.acquire(self._pipeline.without_held(wanted))
            code = grpc.StatusCode.OK
        except FlanneletteError as error:
            code = code_of(error)
            if isinstance(error, NameTaken):
                self._broker.connected_nodes.refuse(wanted.node, wanted.machine, str(error))
            self._requests.failed(request.node, "", "AcquireLease", code.name, str(error))
            raise
        finally:
            metrics.ACQUIRES.labels(code.name).inc()
        self._requests.succeeded(lease.node, lease.name)
        await self._broker.has(lease, _READ_OWN_WRITE_SECONDS)
        return pb.AcquireLeaseResponse(lease=lease_to_proto(lease), time_left=time_left(lease))

    async def RenewLease(self, request: pb.RenewLeaseRequest, context: Context) -> pb.RenewLeaseResponse:
        """Prolongs a lease in the store."""
        try:
            node, machine = self._identity.one_node(request.node), machine_of(request)
            lease = await self._store.renew(node, request.name, machine)
        except FlanneletteError as error:
            self._requests.failed(request.node, request.name, "RenewLease", code_of(error).name, str(error))
            raise
        self._requests.succeeded(lease.node, lease.name)
        return pb.RenewLeaseResponse(lease=lease_to_proto(lease), time_left=time_left(lease))

    async def ReleaseLease(self, request: pb.ReleaseLeaseRequest, context: Context) -> pb.ReleaseLeaseResponse:
        """Gives up a lease of the node, or without a name all of them."""
        node = self._identity.one_node(request.node)
        if not request.name:
            self._require_table()
        for name in [request.name] if request.name else list(self._broker.leases_by_node.of(node)):
            await self._store.release(node, name)
        return pb.ReleaseLeaseResponse()

    async def GetStatus(self, request: pb.GetStatusRequest, context: Context) -> pb.GetStatusResponse:
        """Answers with the service's state, and never fails."""
        table, findings = self._broker.table, self._health.findings
        response = pb.GetStatusResponse(
            ready=self._health.ready,
            reasons=self._health.reasons,
            node=self._identity.node,
            version=version(),
            store=status_to_proto(self._broker.store_status),
            leases=len(table.leases),
            watchers=self._broker.watchers,
            cursor=self._broker.change_log.cursor if table.synced else "",
            quarantined=len(self._pipeline.quarantine.keys),
            held_removals=len(self._pipeline.held) + len(self._imports.held),
            held_reason=held_reason(self._pipeline, self._imports),
            network=network_to_proto(replace(table.network, source=table.network.shown)) if table.network else None,
            network_error=table.network_error,
            pending_moves=map(move_to_proto, self._moves.all()),
            findings=[finding_to_proto(each) for each in findings],
            conditions=[condition_to_proto(each) for each in (*self._health.unready, *findings)],
            imports=[each.to_proto() for each in self._imports.clusters],
        )
        response.time.GetCurrentTime()
        response.start_time.FromNanoseconds(self._started)
        return response

    async def ListQuarantine(self, request: pb.ListQuarantineRequest, context: Context) -> pb.ListQuarantineResponse:
        """What the store holds and we refuse to act on."""
        return list_quarantine(self._pipeline, self._imports)

    async def ConfirmRemoval(self, request: pb.ConfirmRemovalRequest, context: Context) -> pb.ConfirmRemovalResponse:
        """Carries out what is held back."""
        removed = self._imports.confirm()
        if self._pipeline.held or not removed:
            removed += self._pipeline.confirm()
        return pb.ConfirmRemovalResponse(removed=sorted(removed))

    async def DeleteQuarantined(
        self, request: pb.DeleteQuarantinedRequest, context: Context
    ) -> pb.DeleteQuarantinedResponse:
        """Deletes a refused key."""
        await self._pipeline.discard(request.key)
        self._tell_operator(f"refused key deleted from the store: {request.key}", [Subject(request.key)])
        return pb.DeleteQuarantinedResponse()

    async def ReserveSubnet(self, request: pb.ReserveSubnetRequest, context: Context) -> pb.ReserveSubnetResponse:
        """Sets subnets aside for an operator or a node."""
        lease = await self._store.reserve(subnets_to_reserve(request), request.node)
        await self._broker.has(lease, _READ_OWN_WRITE_SECONDS)
        return pb.ReserveSubnetResponse(lease=lease_to_proto(lease))

    async def ReleaseSubnet(self, request: pb.ReleaseSubnetRequest, context: Context) -> pb.ReleaseSubnetResponse:
        """Ends the reservation of a subnet."""
        await self._store.unreserve(request.name)
        return pb.ReleaseSubnetResponse()

    async def ReclaimLeases(self, request: pb.ReclaimLeasesRequest, context: Context) -> pb.ReclaimLeasesResponse:
        """Takes back leases for an operator."""
        reclaimed = await self._store.reclaim(leases_to_reclaim(request), dry_run=request.dry_run)
        if reclaimed and not request.dry_run:
            leases = [Subject(each.lease.name, each.lease.node) for each in reclaimed]
            names = ", ".join(lease.name for lease in leases[:MOST_NAMED])
            self._tell_operator(f"{len(leases):,} leases reclaimed: {names}", leases)
        return reclaim_response(reclaimed)

    async def RenumberNode(self, request: pb.RenumberNodeRequest, context: Context) -> pb.RenumberNodeResponse:
        """Releases the node's lease, which does not fit the configuration, so that the node acquires another."""
        node, network = self._identity.one_node(request.node), self._broker.table.network
        if network is None:
            raise Unavailable("the network configuration is not known yet: try again")
        move = next((move for move in self._moves.all() if move.node == node), None)
        if move is None:
            raise NotFound(
                f"no network change is pending for node {node}: the configuration has room for its subnets"
            )
        if not hands_out(network):
            raise NotYet(
                f"the subnet of node {node} is its podCIDR, which cannot change: put the network configuration back, "
                "or delete the Node and let it join again"
            )
        if not request.dry_run:
            log.warning("an operator moves a node to another subnet", node=node, lease=move.lease, to=move.where)
            await self._store.release(node, move.lease)
            self._tell_operator(f"node {node} moves to another subnet", [Subject(move.lease, node)])
        return pb.RenumberNodeResponse(move=move_to_proto(move))

    async def ReportProgress(self, request: pb.ReportProgressRequest, context: Context) -> pb.ReportProgressResponse:
        """Kept here, and passed to the store, which may need it."""
        progress = replace(progress_from_proto(request), node=self._identity.one_node(request.node))
        self._broker.connected_nodes.require_name(progress.node, machine_of(request))
        reports, pause = self._broker.reports, 0.0
        if reports.take(progress):
            pause = await self._store.report(progress)
        response = pb.ReportProgressResponse()
        response.time.GetCurrentTime()
        response.pause.FromMicroseconds(int(max(pause, reports.pause) * 1e6))
        return response

    async def ListNodes(self, request: pb.ListNodesRequest, context: Context) -> pb.ListNodesResponse:
        """Every node, as far as this process can know."""
        return list_nodes(self._broker, self._identity.node)

    async def GetConvergence(self, request: pb.GetConvergenceRequest, context: Context) -> pb.GetConvergenceResponse:
        """The answer is that of its own moment, also after a wait."""
        self._require_table()
        status = self._broker.store_status
        if not request.cursor and not status.connected:
            raise Unavailable(f"what changed last is not known while the {status.kind} store is away: {status.error}")
        cursor = request.cursor or self._broker.change_log.cursor
        position = self._broker.change_log.position(cursor)
        if position is None:
            raise NotFound(
                f"cursor {cursor!r} was compacted, or is of another start of this service: ask for the newest, "
                "which has every change before it, with an empty cursor"
            )
        seconds = seconds_of(request.wait, "wait", most=_LONGEST_WAIT_SECONDS)
        await self._broker.reports.converged(position, seconds)
        return convergence(self._broker, cursor, position)

    def WatchEvents(self, request: pb.WatchEventsRequest, context: Context) -> AsyncIterator[pb.WatchEventsResponse]:
        """Streams the events of the journal."""
        reading = reading_of(self._broker.journal, request)
        return watch(reading, self._stopping, follows=not request.no_follow, end="the lease service is stopping")

    def _note_refused_stream(self, node: str, reason: str) -> None:
        self._requests.failed(node, "", "WatchLeases", grpc.StatusCode.FAILED_PRECONDITION.name, reason)

    def _tell_operator(self, what: str, leases: Sequence[Subject]) -> None:
        first = tuple(leases[:MOST_NAMED])
        event = Event(LeaseEventKind.OPERATOR, what, "an operator", subjects=first, subject_count=len(leases))
        self._broker.journal.note(event)

    def _require_table(self) -> None:
        if not self._broker.table.synced:
            raise Unavailable(f"the leases are not known yet: {'; '.join(self._health.reasons)}")


def leases_of_address(leases: Mapping[str, Lease], text: str) -> dict[str, Lease]:
    """Returns the leases with this address in a subnet (a pod's) or as public address (a node's). Raises
    InvalidInput.
    """
    try:
        address = ip_address(text)
    except ValueError:
        raise InvalidInput(f"address {text!r} is not an IP address: write for instance 10.5.52.2") from None
    return {name: lease for name, lease in leases.items() if _has(lease, address)}


def list_nodes(broker: Broker, served: str) -> pb.ListNodesResponse:
    """Every node with a lease, a stream, or a report; `served` is the one node that we serve, empty: all."""
    reports = broker.reports
    departed = reports.departed
    return pb.ListNodesResponse(
        nodes=[
            _node(broker, name, departed.get(name), is_ours=name == served)
            for name in sorted(broker.leases_by_node.nodes | reports.connected.keys() | departed.keys())
        ],
        cursor=broker.change_log.cursor if broker.table.synced else "",
    )


def convergence(broker: Broker, cursor: str, position: int) -> pb.GetConvergenceResponse:
    """Answers GetConvergence: which nodes have every change up to the position, and which do not."""
    reports = broker.reports
    nodes = sorted(reports.connected.items())
    response = pb.GetConvergenceResponse(
        cursor=cursor,
        converged=reports.is_converged(position),
        nodes_done=[name for name, node in nodes if node.position >= position and not node.is_failing],
        nodes_failed=[name for name, node in nodes if node.position >= position and node.is_failing],
        nodes_pending=[name for name, node in nodes if node.position < position],
    )
    elapsed = reports.elapsed(position)
    if elapsed is not None:
        response.elapsed.FromMicroseconds(round(elapsed * 1e6))
    return response


def held_reason(pipeline: StorePipeline, imports: Imports) -> str:
    """What removals that are held back wait for; empty: there is none."""
    return "; ".join(filter(None, (pipeline.held_reason, imports.held_reason)))


def list_quarantine(pipeline: StorePipeline, imports: Imports) -> pb.ListQuarantineResponse:
    """The keys that are refused, and the removals that are held back."""
    held = sorted([*pipeline.held, *imports.held])
    response = pb.ListQuarantineResponse(held_removals=held, held_reason=held_reason(pipeline, imports))
    for key, refused in sorted(pipeline.quarantine.keys.items()):
        entry = response.keys.add(key=key, reason=refused.refusal.reason, kind=_KINDS[refused.refusal.kind])
        entry.first_seen_time.FromMilliseconds(int(refused.first_seen * 1000))
    if pipeline.held_since is not None:
        response.held_since_time.FromMilliseconds(int(pipeline.held_since * 1000))
    return response


def reclaim_response(reclaimed: Iterable[Reclaimed]) -> pb.ReclaimLeasesResponse:
    """What was taken back, sorted by name."""
    response = pb.ReclaimLeasesResponse()
    for each in sorted(reclaimed, key=lambda each: each.lease.name):
        message = response.reclaimed.add(lease=lease_to_proto(each.lease))
        if each.seen_at is not None:
            message.last_seen_time.FromMilliseconds(int(each.seen_at * 1000))
    return response


class PendingMoves:
    """The nodes whose subnet does not fit the network configuration (ADR 25).

    Computed once for each revision of the table: 10,000 leases take 30 ms.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._known: tuple[int, list[PendingMove]] = (-1, [])

    def all(self) -> list[PendingMove]:
        """Returns the pending moves, sorted by node."""
        table = self._broker.table
        if self._known[0] != table.revision:
            self._known = table.revision, pending_moves(table.leases, table.network)
        return self._known[1]


def move_to_proto(move: PendingMove) -> pb.PendingMove:
    """Translates a pending move to its message."""
    return pb.PendingMove(node=move.node, lease=move.lease, subnets=map(str, move.subnets), where=move.where)


def _node(broker: Broker, name: str, departed: Report | None, *, is_ours: bool) -> pb.Node:
    """`departed`: the last report of a node that is not connected. `is_ours`: we alone serve this node."""
    reports, leases = broker.reports, broker.leases_by_node.of(name)
    node = pb.Node(name=name)
    if leases:
        lease = leases[min(leases)]
        node.lease = lease.name
        node.subnets.extend(str(subnet.cidr) for subnet in lease.subnets)
    progress = reports.connected.get(name, NodeProgress())
    report = progress.report or departed
    is_expected = bool(leases) and all(each.is_idle for each in leases.values()) and report is None
    is_connected = broker.connected_nodes.is_connected(name)
    if is_connected or (not is_expected and (is_ours or broker.connected_nodes.knows(name))):
        node.connected = is_connected
    if report is not None:
        node.cursor = report.progress.cursor
        node.report_time.FromMilliseconds(int(report.at * 1000))
        node.failed.extend(map(failed_to_proto, report.progress.failed))
        node.failed_count = report.progress.failed_count
        node.findings.extend(map(finding_to_proto, report.progress.findings))
        node.conditions.extend(map(condition_to_proto, report.progress.findings))
        node.version = report.progress.version
    if progress.position > NOTHING_YET:
        node.behind = reports.last - progress.position
    return node


def _has(lease: Lease, address: Address) -> bool:
    return any(address in subnet.cidr or address == subnet.public_address for subnet in lease.subnets)


def reading_of(journal: LeaseJournal, request: pb.WatchEventsRequest) -> Reading[pb.WatchEventsResponse]:
    """One call of WatchEvents. Raises InvalidInput for what it cannot look for."""
    return Reading(journal, request, request.name, _event)


def _event(entry: RecordedEvent) -> pb.WatchEventsResponse:
    event = entry.event
    is_key = event.kind in (
        LeaseEventKind.QUARANTINED,
        LeaseEventKind.QUARANTINE_ENDED,
    )  # which may have a slash, too
    return pb.WatchEventsResponse(
        leases=[
            pb.LeaseName(name=name, node=node, cluster="" if is_key or "/" not in name else name.partition("/")[0])
            for name, node in event.subjects
        ],
        lease_count=event.subject_count,
    )
