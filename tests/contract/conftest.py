"""A real etcd for every contract test that asks for one."""

from tests.contract.worlds import world
from tests.etcd import etcd, make_etcd, own_etcd, pytest_runtest_makereport

__all__ = ["etcd", "make_etcd", "own_etcd", "pytest_runtest_makereport", "world"]
