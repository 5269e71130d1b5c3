"""An overlay that a real flanneld on each host makes; each has an etcd of its own, as the hosts share no loopback."""

import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Final

from bench.etcd import PREFIX, started_etcd
from bench.process import running
from bench.result import BenchFailed, NotHere
from lab.charon import around_in
from lab.netns import NetworkNamespace
from lab.programs import find_etcd
from lab.topology import NETWORK, Host

_SECONDS: Final = 60.0
Subnets = tuple[tuple[Host, str], tuple[Host, str]]
"""Each host with its subnet's gateway, as 10.5.1.1/24."""


@contextmanager
def flannelds(subnets: Subnets, backend: Mapping[str, object], ready: Callable[[], bool]) -> Iterator[None]:
    """Returns when `ready`. Raises NotHere, BenchFailed."""
    kind = str(backend["Type"])
    program = _program(kind)
    said = {"BackendType": kind} if kind != "udp" else {}
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for (host, gateway), (other, theirs) in (subnets, subnets[::-1]):
            home = directory / host.name
            home.mkdir()
            (home / "subnet.env").write_text(f"FLANNEL_NETWORK={NETWORK}\nFLANNEL_SUBNET={gateway}\n")
            endpoint = stack.enter_context(_etcd(host.namespace))
            _put(host.namespace, endpoint, "config", json.dumps({"Network": str(NETWORK), "Backend": dict(backend)}))
            name = theirs.replace(".1/", ".0-")
            _put(host.namespace, endpoint, f"subnets/{name}", json.dumps({"PublicIP": str(other.address)} | said))
            flags = (f"--etcd-endpoints={endpoint}", "--iface=eth0", f"--subnet-file={home}/subnet.env")
            around = around_in(home) if kind == "ipsec" else ()  # it starts a charon
            stack.enter_context(running(*host.namespace.command(*around, program, *flags), log=home / "log"))
        end = time.monotonic() + _SECONDS
        while not ready():
            if time.monotonic() > end:
                logs = "\n".join(path.read_text()[-600:] for path in directory.glob("*/log"))
                raise BenchFailed(f"the flannelds make no overlay: {logs}")
            time.sleep(0.1)
        yield


def _program(backend: str) -> str:
    """What `make tools` has built; it has udp only where gcc is (lab/flanneld.sh)."""
    program = shutil.which("flanneld") or ""
    stamp = Path(f"{program}.version")
    if not program or (backend == "udp" and not (stamp.exists() and "udp" in stamp.read_text())):
        raise NotHere(f"a flanneld with {backend} is not installed: `make tools`, where Go and gcc are")
    return program


@contextmanager
def _etcd(namespace: NetworkNamespace) -> Iterator[str]:
    with namespace.inside():
        made: AbstractContextManager[tuple[str, object]] = started_etcd()
        endpoint, _ = made.__enter__()
    try:
        yield endpoint
    finally:
        made.__exit__(None, None, None)


def _put(namespace: NetworkNamespace, endpoint: str, key: str, value: str) -> None:
    command = namespace.command(find_etcd("etcdctl"), f"--endpoints={endpoint}", "put", f"{PREFIX}/{key}", value)
    end = time.monotonic() + _SECONDS
    while subprocess.run(command, capture_output=True, check=False).returncode:
        if time.monotonic() > end:
            raise BenchFailed("an etcd does not answer")
        time.sleep(0.1)
