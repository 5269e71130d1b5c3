"""What a service imports when it starts, on which all of a cold start waits."""

import subprocess
import sys

import pytest

_TOO_MUCH = {
    "rich": "50 ms, and structlog's tracebacks need none of it here",
    "pyroute2.ndb": "pyroute2's package, of which netlink.pyroute2_parts takes what is used",
    "unittest.case": "7 ms, which pyroute2 brings in for a mock",
    "importlib.metadata": "1 MB with the email package, for a number",
    "difflib": "150 KB, for a flag that is mistyped",
    "http.server": "15 ms, for whoever asks for a port",
    "prometheus_client.exposition": "15 ms more, for whoever asks for /metrics",
    "re2": "30 ms and 1 MiB, for whoever gives --iface-regex",
    "kubernetes": "0.2 s, for the Kubernetes store alone",
}


@pytest.mark.parametrize("service", ["lease", "dataplane", "masq"])
def test_a_service_starts_without_what_it_does_not_use(service: str) -> None:
    found = _run(f"import flannelette.services.{service}.main, sys; print(*sys.modules)")
    assert not _TOO_MUCH.keys() & set(found.split())


def test_all_of_pyroute2_can_be_imported_after_its_parts() -> None:
    parts = "from flannelette.services.dataplane.netlink.pyroute2_parts import AsyncIPRoute, NetlinkError"
    check = "print(pyroute2.AsyncIPRoute is AsyncIPRoute, pyroute2.NetlinkError is NetlinkError, bool(pyroute2.NDB))"
    assert _run(f"{parts}; import pyroute2; {check}") == "True True True"
    assert _run(f"import pyroute2; {parts}; {check}") == "True True True"


def test_all_of_unittest_can_be_imported_after_the_parts_of_pyroute2() -> None:
    parts = "from flannelette.services.dataplane.netlink.pyroute2_parts import AsyncIPRoute"
    check = "print(unittest.mock.Mock.__name__, unittest.util.safe_repr(1), bool(unittest.TestCase))"
    assert _run(f"{parts}; import unittest.mock; {check}") == "Mock 1 True"
    assert _run(f"import unittest.mock; {parts}; {check}") == "Mock 1 True"


def test_the_etcd_store_starts_without_a_client_that_it_does_not_use() -> None:
    found = set(_run("import flannelette.services.lease.stores.etcd.store, sys; print(*sys.modules)").split())
    assert "etcd3.etcdrpc.rpc_pb2" in found
    assert not {"etcd3.client", "tenacity"} & found


def test_all_of_etcd3_can_be_imported_after_its_parts() -> None:
    parts = "from flannelette.services.lease.stores.etcd.client import rpc"
    check = (
        "from etcd3 import Etcd3Client; from etcd3.etcdrpc import rpc_pb2; print(rpc_pb2 is rpc, bool(Etcd3Client))"
    )
    assert _run(f"{parts}; {check}") == "True True"


def test_the_kubernetes_store_starts_without_what_a_pod_does_not_use() -> None:
    found = set(_run("import flannelette.services.lease.stores.kube.store, sys; print(*sys.modules)").split())
    assert "kubernetes.aio.client.configuration" in found
    assert (
        not {"requests", "oauthlib", "urllib3", "pydantic", "kubernetes.client", "kubernetes.aio.client.models"}
        & found
    )


def test_all_of_kubernetes_can_be_imported_after_its_parts() -> None:
    parts = "from flannelette.services.lease.stores.kube.client import Configuration"
    check = (
        "from kubernetes.aio import client; from kubernetes.aio.config import load_kube_config; "
        "print(client.Configuration is Configuration, bool(client.ApiClient), bool(client.V1Node))"
    )
    assert _run(f"{parts}; {check}") == "True True True"
    assert _run(f"import kubernetes.aio; {parts}; {check}") == "True True True"


def test_all_of_prometheus_client_can_be_imported_after_its_parts() -> None:
    parts = "from flannelette.services.runtime.telemetry.metrics import REGISTRY, Counter"
    check = "print(prometheus_client.Counter is Counter, b'process_' in prometheus_client.generate_latest(REGISTRY))"
    assert _run(f"{parts}; import prometheus_client; {check}") == "True True"
    assert _run(f"import prometheus_client; {parts}; {check}") == "True True"


def test_rich_can_be_imported_after_the_logs() -> None:
    assert (
        _run("import flannelette.services.runtime.telemetry.logs, rich.console; print(rich.console.Console.__name__)")
        == "Console"
    )


def _run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return done.stdout.strip()
