"""A real etcd, and a real kube-apiserver, for every contract test that asks for one."""

from tests.contract.worlds import world
from tests.etcd import etcd, make_etcd, own_etcd, pytest_runtest_makereport
from tests.kube import kube, shared_kube

__all__ = ["etcd", "kube", "make_etcd", "own_etcd", "pytest_runtest_makereport", "shared_kube", "world"]
