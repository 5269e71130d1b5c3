"""Kernel modules that few containers have: tests that need some carry the marker `modules`.

    @pytest.mark.modules("wireguard")

Where the kernel has no such module the test is skipped; `make vm-test` runs all tests with the marker in a machine
that has each of them (tests/vm.py), and there it is an error if one is missing.
"""

import subprocess
from functools import cache
from typing import Final

import pytest

from lab.vm import is_guest

PROBES: Final = {
    "dummy": "ip link add probe type dummy",
    "esp4": "ip xfrm state add src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x100 mode tunnel aead rfc4106(gcm(aes)) "
    f"0x{'00' * 20} 128",
    "fou": "ip fou add port 8285 ipproto 4",
    "ipip": "ip link add probe type ipip local 192.0.2.1",
    "netem": "tc qdisc add dev lo root netem delay 1ms",
    "wireguard": "ip link add probe type wireguard",
}
"""A command for each module, which fails without it; it is run in a namespace of its own."""


@cache
def has_module(name: str) -> bool:
    """Whether the kernel has the module, or loads it."""
    command = ["unshare", "--net", *PROBES[name].split()]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def require_modules(item: pytest.Item) -> None:
    """Skips a test where the kernel lacks a module that its marker names."""
    names = [name for marker in item.iter_markers("modules") for name in marker.args]
    if missing := [name for name in names if not has_module(name)]:
        words = " ".join(missing)
        if is_guest():
            pytest.fail(f"the VM's kernel has no {words}")
        pytest.skip(f"this kernel has no {words}: `modprobe -a {words}`, or `make vm-test`, which has all modules")
