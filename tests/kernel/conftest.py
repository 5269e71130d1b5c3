"""What every kernel test may ask for."""

from tests.etcd.server import make_etcd, own_etcd
from tests.hosts.cluster import cluster
from tests.hosts.masq import host, legacy
from tests.hosts.netlink import vxlan_host

__all__ = ["cluster", "host", "legacy", "make_etcd", "own_etcd", "vxlan_host"]
