"""What every kernel test may ask for."""

from tests.etcd.server import make_etcd, own_etcd
from tests.hosts.cluster import cluster
from tests.hosts.masq import host, legacy
from tests.hosts.netlink import vxlan_host
from tests.kubernetes.api_server import kube

__all__ = ["cluster", "host", "kube", "legacy", "make_etcd", "own_etcd", "vxlan_host"]
