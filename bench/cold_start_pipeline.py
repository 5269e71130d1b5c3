"""`python -m bench.cold_start_pipeline ENDPOINT NAMESPACE SHAPE`: etcd's leases into the kernel with common tools.

SHAPE is `flannel` (metric 0, proto boot) or `metrics` (ours).
"""

import base64
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from lab.programs import find_etcd

_PREFIX: Final = "/coreos.com/network/subnets/"


def main(endpoint: str, namespace: str, shape: str) -> None:
    """Lists the leases, converts them to commands, and programs the kernel."""
    listing = subprocess.run(
        [find_etcd("etcdctl"), f"--endpoints={endpoint}", "get", "--prefix", _PREFIX, "-w", "json"],
        check=True,
        capture_output=True,
        env={"ETCDCTL_API": "3"},
    )
    bridge, ip = [], []
    for number, item in enumerate(json.loads(listing.stdout)["kvs"], 1):
        address, length = base64.b64decode(item["key"]).decode().removeprefix(_PREFIX).split("-")
        value = json.loads(base64.b64decode(item["value"]))
        mac, public = value["BackendData"]["VtepMAC"], value["PublicIP"]
        end = "" if shape == "flannel" else f" metric {number} proto 77"
        ip.append(f"neigh replace {address} lladdr {mac} dev flannel.1 nud permanent\n")
        bridge.append(f"fdb replace {mac} dst {public} dev flannel.1 self permanent\n")
        ip.append(f"route replace {address}/{length} via {address} dev flannel.1 onlink{end}\n")
    with tempfile.TemporaryDirectory() as directory:
        for tool, lines in (("bridge", bridge), ("ip", ip)):
            file = Path(directory, tool)
            file.write_text("".join(lines))
            subprocess.run([tool, "-n", namespace, "-batch", file], check=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
