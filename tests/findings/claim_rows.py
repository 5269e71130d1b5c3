"""Leases that claim what another node has, one row each: tried in an etcd that another program writes to."""

from typing import Final

from tests.findings.fault import SilentFault


def _claim(what: str, cause: str) -> SilentFault:
    return SilentFault(
        "",
        "claim",
        cause,
        "",
        is_told=False,
        undo="etcdctl del {key}",
        what=what,
        problem="The lease 10.5.77.0-24 claims a subnet, MAC, key or address of another node, and gets no packets.",
        evidence="leases: 10.5.77.0-24, 10.5.77.0/24 at *",
    )


CLAIM_FAULTS: Final = {
    "mac-of-another-node": _claim(
        "two leases with one MAC, of which a flanneld has written one",
        "The lease 10.5.77.0-24: MAC * is that of the lease *",
    ),
    "address-of-another-node": _claim(
        "two leases with one public address, of which a flanneld has written one",
        "The lease 10.5.77.0-24: public address * is that of the lease *",
    ),
}
