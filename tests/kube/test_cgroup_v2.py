"""A kubelet where cgroup v2 is all there is: in a virtual machine. What `test_limits` says holds there too."""

import sys

import pytest

from lab.kubernetes import guest
from lab.vm import is_guest
from lab.vm.kernel import is_built
from lab.vm.machine import CACHE
from lab.vm.packages import VmUnusable
from tests.kube.conftest import Clusters
from tests.patience import PATIENCE

pytestmark = [pytest.mark.kube, pytest.mark.asyncio(loop_scope="session")]
_TESTS = ("-m", "kube", "-p", "no:cacheprovider", "-rfEs", "tests/kube/test_limits.py")


@pytest.mark.skipif(is_guest(), reason="this is the virtual machine")
async def test_limits_hold_on_a_node_with_cgroup_v2(clusters: Clusters) -> None:
    if not is_built(CACHE):
        pytest.skip("make vm-test builds the kernel of the virtual machine")
    await clusters.close()  # the machine for itself
    try:
        code = guest.run([sys.executable, "-m", "pytest", *_TESTS], nodes=1, seconds=30 * PATIENCE)
    except VmUnusable as error:
        pytest.skip(str(error))
    assert code == 0
