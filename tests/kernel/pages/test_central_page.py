"""docs/central.md: a lease service over TCP with real certificates, a node, and an administrator at a desk.

The services of c0 and n1 share a host here; everything is typed as it stands.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.namespaces import NetworkNamespace
from tests.pages.document import sections
from tests.pages.host import PageHost, page_host
from tests.paths import ROOT

PAGE = ROOT / "docs/central.md"
SERVICES = ("lease", "dataplane", "masq")
PROGRAMS = {"flannelette": "ctl"} | {f"flannelette-{service}": service for service in SERVICES}


@pytest.fixture
def host(netns: NetworkNamespace, tmp_path: Path) -> Iterator[PageHost]:
    """With the programs on its PATH, and a home in which the commands are typed."""
    with page_host(netns, tmp_path) as it:
        for name, package in PROGRAMS.items():
            program = tmp_path / "bin" / name
            program.write_text(
                f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m flannelette.services.{package}.main "$@"\n'
            )
            program.chmod(0o755)
        yield it


def test_a_node_joins_by_a_central_lease_service_and_gets_new_certificates(host: PageHost) -> None:
    certificates, lease, node, desk, limits, renewal = (
        [block.commands for block in section.blocks] for section in sections(PAGE)
    )
    at_home = f"cd {host.home}\n"

    def typed(commands: str) -> str:
        return host.type(at_home + commands)

    for block in certificates:
        typed(block)
    assert subprocess.run(["stat", "--format=%a", host.home / "tls/ca.key"], capture_output=True).stdout == b"600\n"
    files, serve = lease
    typed(files)
    host.start("lease", "sh", "-euc", f"exec {serve}")
    files, *services = node
    typed(files)
    for block in services:
        host.start(block.split()[0], "sh", "-euc", f"exec {block}")
    assert host.until_typed("flannelette status | grep 'n1 is healthy'")
    (block,) = desk
    *exports, nodes, leases, reserve = block.splitlines()
    as_alice = "\n".join([at_home, *exports, ""])
    assert "n1" in host.type(as_alice + nodes)
    assert "10.99.0.11" in host.type(as_alice + leases)
    assert "n7" in host.type(f"{as_alice}{reserve}\n{reserve.partition(' reserve')[0]} reservations")
    (block,) = limits
    refused = host.tried(as_alice + block)
    assert refused.stdout == "refused\n"
    assert "flannelette://admin/" in refused.stderr
    for block in renewal:
        typed(block)
    for service in ("flannelette-dataplane", "flannelette-masq"):
        log = host.home / f"{service}.log"
        host.until(lambda log=log: "new TLS files are in force" in log.read_text(), "new certificates")  # type: ignore[misc]
    assert "10.99.0.11" in host.type(as_alice + leases)
