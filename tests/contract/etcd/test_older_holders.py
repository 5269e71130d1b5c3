"""Keys of today in etcd, as the lease services of earlier releases read them."""

import subprocess
import sys
from pathlib import Path

import pytest

from flannelette.services.core.leases.lease import Lease
from flannelette.services.lease.stores.etcd.prefix import format_holder, holder_of, parse_holder
from tests.examples.leases import make_lease
from tests.upgrade.releases import COMMITS, unpacked

_READ = """
import sys
try:
    from services.lease.stores.etcd.keys import parse_holder
except ModuleNotFoundError:
    from services.lease.stores.etcd.holders import parse_holder
holder = parse_holder(sys.argv[1], sys.argv[2].encode())
print(holder.node, holder.public_ip, holder.public_ipv6)
"""


@pytest.mark.parametrize("version", COMMITS)
def test_an_earlier_release_reads_a_holder_that_names_its_machine(version: str, tmp_path: Path) -> None:
    lease: Lease = make_lease(1)
    value = format_holder(holder_of(lease, "0123456789abcdef" * 2)).decode()
    home = unpacked(version, tmp_path)
    environment = {"PYTHONPATH": f"{home}:{home / 'proto'}"}
    ran = subprocess.run(
        [sys.executable, "-c", _READ, lease.name, value],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    assert ran.stdout.split() == [lease.node.encode(), str(lease.addresses[0]).encode()], ran.stderr.decode()
    assert parse_holder(lease.name, value.encode()).machine == "0123456789abcdef" * 2
