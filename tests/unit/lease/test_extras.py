"""The lease service where the packages of a store are not installed."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("store", "missing", "node", "sentence"),
    [
        ("kube", "kubernetes", "", "the Kubernetes store needs the package kubernetes, which is not installed"),
        ("kube", "aiohttp", "n1", "the Kubernetes store needs the package aiohttp, which is not installed"),
        ("etcd", "etcd3", "n1", "the etcd store needs the package etcd3"),
    ],
)
def test_it_names_the_extra_that_its_store_needs(store: str, missing: str, node: str, sentence: str) -> None:
    start = "from flannelette.services.lease.main import main; sys.exit(main())"
    code = f"import sys; sys.modules[{missing!r}] = None; {start}"
    command = [sys.executable, "-c", code, f"--store={store}", "--socket-dir=/nonexistent", f"--node={node}"]
    command += ["--kube-api-url=http://127.0.0.1:1"] if store == "kube" else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    extra = "kubernetes" if store == "kube" else "lease"
    assert done.returncode == 1
    assert f"{sentence}: pip install 'flannelette[{extra}]'" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
