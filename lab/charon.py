"""The charon of each host, which backend ipsec needs, and whether this machine has one and IPsec in its kernel."""

import subprocess
from pathlib import Path
from typing import Final

from lab.options import BadOption

PACKAGES: Final = ("libstrongswan-standard-plugins", "strongswan-charon", "strongswan-swanctl")
"""Debian's, in which it is."""
_PLACES: Final = ("/usr/lib/ipsec/charon", "/usr/libexec/ipsec/charon", "/usr/lib/strongswan/charon")
_CONFIGURATION: Final = """\
charon {
  load = random nonce aes sha1 sha2 gmp openssl pem pkcs1 hmac kdf gcm kernel-netlink socket-default vici
  install_routes = no
  install_virtual_ip = no
  reuse_ikesa = no
  plugins {
    vici {
      socket = unix:///run/charon.vici
    }
  }
  filelog {
    stderr {
      default = 1
      flush_line = yes
    }
  }
}
"""
_STATE: Final = (
    "ip xfrm state add src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x77 mode tunnel aead rfc4106(gcm(aes)) "
    "0x000102030405060708090a0b0c0d0e0f10111213 128"
)


def find_charon() -> str:
    """Finds the path of charon; empty: it is not installed."""
    return next((place for place in _PLACES if Path(place).exists()), "")


def missing() -> str:
    """What this machine lacks for ipsec, with what to do; empty: nothing. Tries in the network namespace at hand."""
    undo = {_STATE: "ip xfrm state flush", "ip link add probe type dummy": "ip link del probe"}
    for command, back in undo.items():
        if subprocess.run(command.split(), capture_output=True, check=False).returncode:
            cure = "`modprobe -a xfrm_user esp4 dummy`, or VM=1 for a lab in a virtual machine, which has them"
            return f"this kernel has no IPsec or no dummy devices: {cure}"
        subprocess.run(back.split(), check=True)
    return "" if find_charon() else f"charon is not installed: apt-get install {' '.join(PACKAGES)}"


def require_charon(backend: str) -> None:
    """Raises BadOption where backend ipsec lacks something."""
    if backend == "ipsec" and (reason := missing()):
        raise BadOption(f"BACKEND=ipsec: {reason}; or use vxlan or host-gw")


def socket_in(home: Path) -> Path:
    """Where the charon of a host with this directory answers."""
    return home / "charon" / "charon.vici"


def command_in(home: Path) -> tuple[str, ...]:
    """Starts it, with a /run of its own."""
    return *around_in(home), find_charon()


def around_in(home: Path) -> tuple[str, ...]:
    """Returns the words before the command of a program that is or has a charon: a /run of its own, where files have
    fixed names.
    """
    run = socket_in(home).parent
    run.mkdir(parents=True, exist_ok=True)
    (run / "strongswan.conf").write_text(_CONFIGURATION)
    script = (
        f"mount --bind {run} /run && rm -f /run/charon.pid /run/charon.vici && "
        'exec env STRONGSWAN_CONF=/run/strongswan.conf "$@"'
    )
    return ("unshare", "-m", "sh", "-c", script, "sh")
