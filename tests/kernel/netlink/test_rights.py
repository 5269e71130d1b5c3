"""Without NET_ADMIN: one clear error, and reading still works."""

import subprocess
import sys
from errno import EACCES, EPROTONOSUPPORT
from pathlib import Path

import pytest

from tests.hosts.namespaces import NetworkNamespace
from tests.patience import PATIENCE

_PROGRAM = """
import asyncio
from flannelette.services.core.errors import Misconfigured
from flannelette.services.dataplane.netlink.objects import Plan
from flannelette.services.dataplane.netlink.objects import Route
from flannelette.services.dataplane.netlink.kernel import KernelSocket

async def main():
    with KernelSocket() as kernel:
        print(len(await kernel.routes(2)))
        try:
            await kernel.apply(Plan(frozenset([Route(bytes(4), b"", 1, 2, 24, 1, 77)]), frozenset()))
        except Misconfigured as error:
            print(error)

asyncio.run(main())
"""


def test_without_net_admin_the_error_names_the_capability(netns: NetworkNamespace) -> None:
    without = ("setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin")
    counted, told = netns.run(*without, sys.executable, "-c", _PROGRAM).splitlines()
    assert counted == "0"
    assert "needs the capability NET_ADMIN" in told


_WITHOUT_NETLINK = """
import ctypes, os, runpy, struct, sys
protocol, error = map(int, sys.argv[1:3])
of_socket = {"x86_64": 41, "aarch64": 198}[os.uname().machine]
program = (
    (0x20, 0, 0, 0), (0x15, 0, 5, of_socket),  # not socket(2): allowed
    (0x20, 0, 0, 16), (0x15, 0, 3, 16),  # not AF_NETLINK
    (0x20, 0, 0, 32), (0x15, 0, 1, protocol),
    (0x06, 0, 0, 0x50000 | error), (0x06, 0, 0, 0x7FFF0000),
)
code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *each) for each in program))
filter = ctypes.create_string_buffer(struct.pack("@HP", len(program), ctypes.addressof(code)))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == libc.prctl(22, 2, filter) == 0  # PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP
sys.argv[1:] = sys.argv[3:]
runpy.run_module("flannelette.services.dataplane.main", run_name="__main__", alter_sys=True)
"""
"""A dataplane to which the kernel refuses netlink sockets of this protocol with this error."""


@pytest.mark.parametrize(
    ("protocol", "error", "said"),
    [
        (
            0,
            EPROTONOSUPPORT,
            "the kernel has no rtnetlink (Protocol not supported): is this a sandbox, such as gVisor?",
        ),
        (16, EPROTONOSUPPORT, "the kernel has no generic netlink (Protocol not supported): is this a sandbox, "),
        (
            16,
            EACCES,
            "the kernel refuses generic netlink (Permission denied): does a seccomp profile",
        ),
        (6, EACCES, "the kernel refuses xfrm (Permission denied): does a seccomp profile"),
    ],
)
def test_without_netlink_a_dataplane_says_so_in_one_line(
    netns: NetworkNamespace, tmp_path: Path, protocol: int, error: int, said: str
) -> None:
    flags = ("--node=n1", f"--socket-dir={tmp_path}", f"--state-dir={tmp_path}/state")
    command = netns.command(sys.executable, "-c", _WITHOUT_NETLINK, str(protocol), str(error), *flags)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"flannelette-dataplane: {said}")
