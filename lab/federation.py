"""Several clusters: which lease service shows a cluster's leases to the others, and the certificates for that.

They are made by the commands that docs/operations.md names: each cluster has an authority of its own.
"""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from lab.build import CommandFailed
from lab.options import Options
from lab.topology import Host, clusters_of, network_of, network_v6_of, underlay_of

PORT: Final = 7070


def exporter(options: Options, hosts: Sequence[Host], cluster: int) -> str:
    """Where it listens: the central lease service on the router, or with etcd the one of the cluster's first host."""
    first = next(host for host in hosts if host.cluster == cluster)
    return str(underlay_of(cluster)[1] if options.store == "embedded" else first.address)


async def make_certificates(options: Options, hosts: Sequence[Host], directory: Path) -> None:
    """Makes the certificates of all clusters. Raises CommandFailed."""
    clusters = clusters_of(hosts)
    await asyncio.gather(*(_make(options, hosts, directory, each, clusters) for each in clusters))


def serve_flags(options: Options, hosts: Sequence[Host], directory: Path, cluster: int, home: Path) -> list[str]:
    """Returns the flags of the lease service that the other clusters connect to."""
    if options.clusters == 1:
        return []
    folder = _folder(directory, cluster)
    return [
        f"--listen=unix:{home / 'lease.sock'},{exporter(options, hosts, cluster)}:{PORT}",
        f"--tls-cert-file={folder / 'lease-server.crt'}",
        f"--tls-key-file={folder / 'lease-server.key'}",
        f"--tls-ca-file={folder / 'ca.crt'}",
    ]


def import_flags(options: Options, hosts: Sequence[Host], directory: Path, cluster: int) -> list[str]:
    """Returns the flags by which a cluster imports the leases of the others, with the certificates that they have
    made for it.
    """
    flags = []
    for other in clusters_of(hosts):
        ranges = {4: network_of(other), 6: network_v6_of(other)}
        allow = "".join(f",allow={ranges[version]}" for version in options.versions)
        folder, stem = _folder(directory, other), f"cluster{cluster}-cluster"
        files = f"cert={folder / stem}.crt,key={folder / stem}.key,ca={folder / 'ca.crt'}"
        if other != cluster:
            flags.append(f"--import=cluster{other}={exporter(options, hosts, other)}:{PORT}{allow},{files}")
    return flags


def _folder(directory: Path, cluster: int) -> Path:
    return directory / f"certs{cluster}"


async def _make(
    options: Options, hosts: Sequence[Host], directory: Path, cluster: int, clusters: Sequence[int]
) -> None:
    folder = str(_folder(directory, cluster))
    await _certs("ca", folder)
    await _certs("server", "lease", folder, "--address", exporter(options, hosts, cluster))
    for other in clusters:
        if other != cluster:
            await _certs("cluster", f"cluster{other}", folder)


async def _certs(*words: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "flannelette.services.ctl.main", "certs", *words),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, complaint = await process.communicate()
    if process.returncode:
        raise CommandFailed(f"flannelette certs {' '.join(words)}: {complaint.decode().strip()}")
