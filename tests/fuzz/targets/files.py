"""The network configuration, and the files that services read when they start: anybody may have cut or replaced them.

A case of `files` is the name of a reader, a line feed, and the file; one of `network` is the configuration.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from hashlib import sha256
from ipaddress import ip_network
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, Final, cast
from zlib import crc32

from flannelette.services.cloud.writer import OwnedRoutes
from flannelette.services.core.errors import InvalidInput, Misconfigured
from flannelette.services.core.family import FAMILIES, Network
from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.leases.table import Step, Upserted
from flannelette.services.core.network import NetworkConfig, parse_network
from flannelette.services.dataplane.backends import make_backend
from flannelette.services.dataplane.backends.wireguard import private_key
from flannelette.services.dataplane.commands import HookFile
from flannelette.services.dataplane.diagnose.cni import check_cni, cni_view
from flannelette.services.dataplane.diagnose.host_programs import HostFiles
from flannelette.services.dataplane.events import Cause, NodeEventKind, NodeJournal
from flannelette.services.dataplane.netlink.kinds import command
from flannelette.services.dataplane.node.cni import read_configuration
from flannelette.services.dataplane.node.subnet_file import SubnetFile, read_previous_subnets, what_pods_keep
from flannelette.services.lease.admission import SnapshotCache
from flannelette.services.lease.stores.store import read_network_file
from flannelette.services.lease.watch import Broker
from flannelette.services.masq.diagnose.flows import flows_of, tunnel_of
from flannelette.services.masq.rules import wanted_chains
from flannelette.services.runtime.cache import older_of, state_in
from flannelette.services.runtime.events import EventFile
from flannelette.services.runtime.lease.wire import (
    network_from_proto,
    network_to_proto,
    step_from_bytes,
    step_to_bytes,
)
from flannelette.services.runtime.os.cni_state import cni_pods
from flannelette.services.runtime.state import Record, RecordFile, UnreadableState, pack
from tests.examples.dataplane import DUAL_UNDERLAY, NAMES
from tests.examples.masq_firewall import ALL
from tests.fuzz.targets.calls.request import run


def network(data: bytes) -> None:
    """Refused by InvalidInput, or all services understand it alike."""
    text = data.decode(errors="replace")
    for leases_subnets in (True, False):
        try:
            found = parse_network(text, leases_subnets=leases_subnets)
        except InvalidInput as error:
            str(error).encode()
            continue
        message = network_to_proto(found)
        assert network_from_proto(message.FromString(message.SerializeToString())) == found
        _use(found)


def _use(found: NetworkConfig) -> None:
    """What the dataplane and masq do with it first."""
    found.shown.encode()
    subnets: list[Network] = [
        ip_network((row.cidr.network_address, min(row.cidr.prefixlen + 1, row.cidr.max_prefixlen)))
        for row in found.families
    ]
    flows_of(found, subnets)
    tunnel_of(found)
    wanted_chains(found, subnets, ALL)
    try:
        backend = make_backend(found)
    except InvalidInput as error:
        str(error).encode()
        return
    backend.mtu(DUAL_UNDERLAY)
    assert all(found.cidrs(family) or found.family(family) is None for family in FAMILIES)


def files(data: bytes) -> None:
    """A file that cannot be read counts as none, or is refused by name; what is read can be written again."""
    name, _, content = data.partition(b"\n")
    known = READERS.get(name.decode(errors="replace"))
    reader = known or READERS[sorted(READERS)[crc32(name) % len(READERS)]]
    path = Path(_directory().name, "file")
    path.unlink(missing_ok=True)
    path.write_bytes(content)
    path.chmod(0o600)
    try:
        reader(path)
    except (InvalidInput, Misconfigured) as error:
        str(error).encode()


@cache
def _directory() -> TemporaryDirectory[str]:
    """In memory, and gone with the process."""
    memory = "/dev/shm"  # noqa: S108 - a disk would take most of the time
    return TemporaryDirectory(dir=memory if Path(memory).is_dir() else None)


def _state(path: Path) -> None:
    """As a release before 0.3 has left it, and with the checksum that it needs: without it nothing is read."""
    rest = path.read_bytes()
    path.write_bytes(b"flannelette-dataplane-state 1 " + sha256(rest).hexdigest().encode() + b"\n" + rest)
    _is_state(RecordFile(path, "dataplane.state", older=older_of("dataplane")).read())


def _records(path: Path) -> None:
    """Each line is the name and the value of a record, which gets the checksum that it needs."""
    lines = (line.partition(b" ") for line in path.read_bytes().split(b"\n"))
    records = [Record(name.decode(errors="replace"), value) for name, _, value in lines]
    for kind, reader in (("lease.table", _table), ("dataplane.hooks", _hooks), ("cloud.routes", _routes)):
        assert RecordFile(path, kind).write(records)
        reader(path)
    assert RecordFile(path, "dataplane.state").write(records)
    _is_state(RecordFile(path, "dataplane.state").read())
    path.write_bytes(b"".join(pack("events", records)))
    _events(path)


def _is_state(records: Sequence[Record]) -> None:
    try:
        state = state_in(records, "n1")
        state.network  # noqa: B018 - it is read
        _are_told(state.table().leases.values())
    except UnreadableState as error:
        str(error).encode()


def _are_told(leases: Iterable[Lease]) -> None:
    step = Step(changes=tuple(map(Upserted, leases)))
    assert step_from_bytes(step_to_bytes(step)) == step


def _table(path: Path) -> None:
    _are_told(SnapshotCache(path, Broker("fake", epoch="epoch")).recall({}).leases.values())


def _events(path: Path) -> None:
    """What cannot be read was left out."""
    file = EventFile(path, NodeEventKind, Cause)
    try:
        assert file.read() == file.read()
    finally:
        run(file.close(NodeJournal()))


def _hooks(path: Path) -> None:
    hooks = HookFile(path).read()
    for hook in hooks:
        command("del", hook, NAMES).encode()
    other = path.with_name("other")
    HookFile(other).write(hooks)
    assert HookFile(other).read() == hooks
    other.unlink(missing_ok=True)


def _routes(path: Path) -> None:
    found = OwnedRoutes(path).keys
    again = OwnedRoutes(path)
    again.update([("rtb", "10.5.200.0/24", "eni")], ())
    assert OwnedRoutes(path).keys == found | {("rtb", "10.5.200.0/24", "eni")}


def _subnets(path: Path) -> None:
    found = read_previous_subnets(path)
    content = SubnetFile(found, found, 1450, ip_masq=True)
    what_pods_keep(path, content)
    path.write_text(content.text())
    assert [each.version for each in read_previous_subnets(path)] == [each.version for each in found]


def _cni(path: Path) -> None:
    root = path.with_name("root")
    for each in ("net.d", "opt/cni/bin", "etc/containerd"):
        (root / each).mkdir(parents=True, exist_ok=True)
    for name in ("net.d/10-flannel.conflist", "etc/containerd/config.toml"):
        (root / name).write_bytes(path.read_bytes())
    seen: Any = SimpleNamespace(cni=cni_view(HostFiles(cni=root / "net.d", root=root)), links={})
    for finding in check_cni(cast("Any", None), seen):
        f"{finding.problem}{finding.cause}{finding.cure}{finding.evidence}".encode()
    read_configuration(path, "/etc/cni/net.d/10-flannel.conflist")
    (root / "cni/results").mkdir(parents=True, exist_ok=True)
    (root / "cni/results/cbr0-pod-eth0").write_bytes(path.read_bytes())
    (root / "cni/networks/cbr0").mkdir(parents=True, exist_ok=True)
    (root / "cni/networks/cbr0/10.5.1.2").write_bytes(path.read_bytes())
    for pod in cni_pods(root / "cni").pods:
        assert all(len(each) in (4, 16) for each in pod.addresses)


READERS: Final[dict[str, Callable[[Path], object]]] = {
    "cloud.routes": _routes,
    "cni": _cni,
    "dataplane.events": _events,
    "dataplane.hooks": _hooks,
    "dataplane.state": _state,
    "lease.table": _table,
    "net-conf": read_network_file,
    "records": _records,
    "subnet.env": _subnets,
    "wgkey": private_key,
}
