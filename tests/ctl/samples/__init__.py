"""Answers of the services of a small cluster, for the tests of the command line."""

from tests.ctl.samples.dataplane_answers import contested_peer, dataplane_status, events, failed_peer, peer, peers
from tests.ctl.samples.lease_answers import lease_status, leases, network, quarantine, varied_leases, vxlan_lease
from tests.ctl.samples.masq_answers import explanation, masq_status, rules
from tests.ctl.samples.moment import NOW, at

__all__ = [
    "NOW",
    "at",
    "contested_peer",
    "dataplane_status",
    "events",
    "explanation",
    "failed_peer",
    "lease_status",
    "leases",
    "masq_status",
    "network",
    "peer",
    "peers",
    "quarantine",
    "rules",
    "varied_leases",
    "vxlan_lease",
]
