"""Findings as messages of the lease service."""

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.core.finding import Finding


def finding_to_proto(finding: Finding) -> pb.Finding:
    """A finding as a message."""
    return pb.Finding(
        problem=finding.problem,
        cure=finding.cure,
        check=finding.check,
        cause=finding.cause,
        evidence=finding.evidence,
        broken=finding.is_broken,
        soon=finding.is_soon,
    )


def finding_from_proto(message: pb.Finding) -> Finding:
    """The finding in a message, however long its texts."""
    texts = (message.check, message.problem, message.cause, message.cure, message.evidence)
    return Finding(*texts, message.broken, message.soon)
