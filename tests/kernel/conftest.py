"""What every kernel test may ask for."""

from tests.etcd import make_etcd, own_etcd
from tests.kernel.clusters import cluster
from tests.kernel.masq_host import host, legacy
from tests.kernel.netlink_host import vxlan_host

__all__ = ["cluster", "host", "legacy", "make_etcd", "own_etcd", "vxlan_host"]
