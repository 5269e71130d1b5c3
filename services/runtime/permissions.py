"""What each call needs over TLS: the one table. A method that is not in it is refused to everybody.

Reading is for all members, because every node needs the whole table anyway. What speaks for one node is for its
dataplane. What changes the overlay for others, or removes, is for an administrator.
"""

from collections.abc import Mapping
from typing import Final

from services.core.access import Requirement

_SERVICES: Final[Mapping[str, Mapping[Requirement, str]]] = {
    "flannelette.lease.v1.LeaseService": {
        Requirement.WATCHER: "WatchLeases",
        Requirement.MEMBER: "ListLeases GetStatus ListNodes GetConvergence ListQuarantine",
        Requirement.HOLDER: "AcquireLease RenewLease ReleaseLease ReportProgress",
        Requirement.ADMIN: (
            "ReserveSubnet ReleaseSubnet ReclaimLeases RenumberNode ConfirmRemoval DeleteQuarantined"
        ),
    },
    "flannelette.dataplane.v1.DataplaneService": {
        Requirement.MEMBER: "GetStatus WatchStatus ListPeers WatchEvents",
        Requirement.ADMIN: "ResyncKernel TeardownKernel HandOver",
    },
    "flannelette.masq.v1.MasqService": {
        Requirement.MEMBER: "GetStatus ListRules Explain",
        Requirement.ADMIN: "ResyncRules TeardownRules",
    },
    "grpc.health.v1.Health": {Requirement.MEMBER: "Check List Watch"},
    "grpc.reflection.v1.ServerReflection": {Requirement.MEMBER: "ServerReflectionInfo"},
    "grpc.reflection.v1alpha.ServerReflection": {Requirement.MEMBER: "ServerReflectionInfo"},
}

REQUIREMENTS: Final[Mapping[str, Requirement]] = {
    f"/{service}/{method}": requirement
    for service, requirements in _SERVICES.items()
    for requirement, methods in requirements.items()
    for method in methods.split()
}
"""By path, `/flannelette.lease.v1.LeaseService/ListLeases`."""


def requirement(method: str, request: object) -> Requirement | None:
    """What this call needs; None: nobody has said."""
    return REQUIREMENTS.get(method)
