"""Conditions as the messages that a lease service before 0.3 knows."""

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.core.conditions import Condition
from flannelette.services.runtime.conditions import older_finding


def finding_to_proto(condition: Condition) -> pb.Finding:
    """A condition as a message."""
    return older_finding(pb.Finding, condition, evidence=condition.evidence)
