"""The store etcd: subnet leases in etcd v3, byte for byte as flannel keeps them."""

from services.lease.stores.etcd.members import Timing
from services.lease.stores.etcd.settings import EtcdSettings
from services.lease.stores.etcd.store import EtcdStore

__all__ = ["EtcdSettings", "EtcdStore", "Timing"]
