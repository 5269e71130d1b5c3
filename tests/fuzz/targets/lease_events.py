"""What a lease service tells a dataplane and masq: a WatchLeasesResponse, of which everything may be hostile."""

from dataclasses import replace
from ipaddress import ip_address, ip_network
from typing import Final
from zlib import crc32

from flannelette.services.core.errors import InvalidInput, Unavailable
from flannelette.services.core.family import FAMILIES
from flannelette.services.core.leases.lease import BackendData, Lease, OpaqueData, Subnet, VxlanData, WireguardData
from flannelette.services.core.leases.network_moves import pending_moves
from flannelette.services.core.leases.table import Step, Table, Upserted
from flannelette.services.core.network import NetworkConfig, parse_network
from flannelette.services.dataplane.backends import BACKENDS, make_backend
from flannelette.services.dataplane.backends.alloc import Alloc
from flannelette.services.dataplane.netlink.kinds import command, text
from flannelette.services.dataplane.peers import PeerContext, peers_of
from flannelette.services.dataplane.underlay import InterfaceChoice, with_chosen
from flannelette.services.masq.reconcile.inputs import RuleInputs, next_inputs
from flannelette.services.masq.rules import wanted_chains
from flannelette.services.runtime.lease.wire import step_from_bytes, step_to_bytes
from tests.examples.dataplane import DUAL_LINKS, NAMES
from tests.examples.masq_firewall import ALL
from tests.examples.peer_contexts import DUAL, assert_nothing_else_is_carried

_YOUNG: Final = 1000
"""The lease service says how old a claim is. That of a good lease is older than any other here."""
_DATA: Final[dict[str, BackendData]] = {
    "vxlan": VxlanData(1, "02:00:00:00:00:c8"),
    "wireguard": WireguardData("R1hHzQ+f/5D6C4L8w0w0Lsa1fSBZ/pdU2FmGtmzkZ2k=", 51820),
    "extension": OpaqueData('"data"'),
}
_OPTIONS: Final = {
    "extension": ',"SubnetAddCommand":"true"',
    "ipsec": f',"PSK":"{6 * "0123456789abcdef"}"',
}
_RANGES: Final = '"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:10:5::/48"'


def _network(backend: str) -> NetworkConfig:
    return parse_network(f'{{{_RANGES},"Backend":{{"Type":"{backend}"{_OPTIONS.get(backend, "")}}}}}')


def _context(backend: str) -> PeerContext:
    network = _network(backend)
    return replace(DUAL, network=network, backend=make_backend(network), links=DUAL_LINKS)


_CONTEXTS: Final = {
    backend: _context(backend) for backend in sorted(BACKENDS) if not issubclass(BACKENDS[backend], Alloc)
}
"""Those whose peers need objects."""

_BACKENDS: Final = sorted(_CONTEXTS)


def _lease(backend: str) -> Lease:
    """Of the node `good`."""
    context, family_data = _CONTEXTS[backend], _DATA.get(backend)
    part = Subnet(ip_network("10.5.200.0/24"), ip_address("10.99.200.1"), family_data)
    return Lease("10.5.200.0-24", "good", (part,), context.backend.lease_type, claim_order=1)


_GOOD: Final = {backend: _lease(backend) for backend in _CONTEXTS}
_PEERS: Final = {
    backend: peers_of([_GOOD[backend]], "n1", context)[_GOOD[backend].name] for backend, context in _CONTEXTS.items()
}
_CHAINS: Final = wanted_chains(DUAL.network, DUAL.own_subnets, ALL)


def lease_events(data: bytes) -> None:
    """A bad step is refused as a whole; a bad lease costs its own peer, and no other."""
    try:
        step = step_from_bytes(data)
    except InvalidInput as error:
        str(error).encode()
        return
    _is_told_on(step)
    for number in (0, 3):  # two of the backends, always the same two for a case
        backend = _BACKENDS[(crc32(data) + number) % len(_BACKENDS)]
        _programmed(step, backend, _CONTEXTS[backend])
    _masqueraded(step)
    _chosen(step)


def _is_told_on(step: Step) -> None:
    """A relay tells it as it was told, but for what is less than a millisecond."""
    told = step_from_bytes(step_to_bytes(step))
    assert _without_ends(told) == _without_ends(step)
    assert step_from_bytes(step_to_bytes(told)) == told


def _without_ends(step: Step) -> Step:
    changes = (Upserted(each.lease.with_time(None)) if isinstance(each, Upserted) else each for each in step.changes)
    return replace(step, changes=tuple(changes))


def _folded(step: Step, good: Lease) -> Table:
    table = Table()
    table.fold(Step(reset=True, network=DUAL.network, changes=(Upserted(good),), synced=True, cursor="e:1"))
    before = dict(table.leases)
    touched = table.fold(step)
    assert {name for name in {**before, **table.leases} if before.get(name) != table.leases.get(name)} <= touched
    assert table.has_room(Step(), len(table.leases))
    if not step.reset and good.name not in touched:
        assert table.leases[good.name] is good
    return table


def _programmed(step: Step, backend: str, context: PeerContext) -> None:
    good = _GOOD[backend]
    leases = {name: each for name, each in _folded(step, good).leases.items() if each.node != good.node}
    young = [replace(each, claim_order=each.claim_order + _YOUNG) for each in leases.values()]
    if good.name in leases:
        return  # the object itself was taken
    peers = peers_of([good, *young], "n1", context)
    assert peers[good.name] == _PEERS[backend], f"with {backend}, what reaches the good node has changed"
    assert_nothing_else_is_carried(peers, context)
    for peer in peers.values():
        for item in peer.objects:
            text(item, NAMES).encode()
            command("replace", item, NAMES).encode()


def _masqueraded(step: Step) -> None:
    before = RuleInputs(DUAL.network, "", DUAL.own_subnets, has_lease=True)
    own = Lease("own", "n1", tuple(map(Subnet, DUAL.own_subnets)), "vxlan")
    table = _folded(step, own)
    inputs = next_inputs(before, table, "n1")
    chains = wanted_chains(inputs.network, inputs.subnets, ALL)
    assert inputs.network is not None
    is_mine = {"own"} | {name for name, each in table.leases.items() if each.node == "n1"} != {"own"}
    if table.leases.get("own") is own and not is_mine and step.network is None:
        assert chains == _CHAINS, "leases of other nodes change no rule"
    pending_moves(table.leases, inputs.network)


def _chosen(step: Step) -> None:
    for overrides in step.overrides.nodes.values() if step.overrides else ():
        try:
            with_chosen(InterfaceChoice(), overrides, FAMILIES)
        except Unavailable as error:
            str(error).encode()
