"""The store etcd: leases in etcd v3, byte for byte as flannel keeps them. Only `rpc` may import grpc."""

from services.lease.stores.etcd.rpc.members import Timing
from services.lease.stores.etcd.rpc.settings import EtcdSettings
from services.lease.stores.etcd.store import EtcdStore

__all__ = ["EtcdSettings", "EtcdStore", "Timing"]
