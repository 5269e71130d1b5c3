"""What CNI's plugins have written about the pods of this node, which is in /var/lib/cni.

libcni keeps the result of each ADD until the DEL (`results/NETWORK-CONTAINER-IFNAME`), and the plugin `host-local` a
file for each address that it has given (`networks/NETWORK/ADDRESS`). Both may be of pods that are gone. `host-local`
takes the lock `networks/NETWORK/lock` for all that it does.
"""

import base64
import binascii
import fcntl
import json
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from ipaddress import ip_address, ip_interface
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, Final

from flannelette.services.core.pod_addresses import CniPod, CniPods, Reservation

_RESULTS: Final = ("results", "cache/results")
"""Directories of results: of container runtimes, and of kubelets before 1.24."""
_NETWORKS: Final = "networks"
_MOST: Final = 2_000
_MOST_RESERVED: Final = 10_000
_LONGEST: Final = 256 * 1024
"""Largest size of a result, in bytes."""
_LONGEST_NAME: Final = 1024
"""Bytes of a reservation that are read: a container ID and the name of an interface."""


def cni_pods(directory: Path) -> CniPods:
    """The pods that are on record in CNI's directory, which is /var/lib/cni.

    Reservations are read before results: a result that is there by then has its interface.
    """
    obstacle, given_in = "", (path for path in _files(directory / _NETWORKS) if path.is_dir())
    for place in (directory, *(directory / each for each in (*_RESULTS, _NETWORKS)), *given_in):
        try:
            next(place.iterdir(), None)
        except OSError as error:
            if place == directory or isinstance(error, PermissionError):  # others need not be there
                obstacle = obstacle or f"{place} cannot be read here ({error.strerror})"
    reserved = reservations(directory)
    pods = [pod for place in _RESULTS for path in _files(directory / place) if (pod := _pod_in(path)) is not None]
    known = {address for pod in pods for address in pod.addresses}
    given = dict.fromkeys(each.packed for each in reserved)
    return CniPods(
        (*pods, *(CniPod((address,)) for address in given if address not in known)), obstacle, tuple(reserved)
    )


def reservations(directory: Path) -> list[Reservation]:
    """The addresses that `host-local` has given, in every CNI network."""
    networks = (path for path in _files(directory / _NETWORKS) if path.is_dir())
    files = (path for network in networks for path in _files(network, _MOST_RESERVED))
    return [found for path in files if (found := _reservation_in(path)) is not None]


def release(directory: Path, some: Collection[Reservation]) -> list[Reservation]:
    """Removes the files of these reservations, as `host-local` does: under the lock of the network.

    Returns those that it has removed. What was changed since it was read stays. Raises OSError: the lock or a file
    cannot be written.
    """
    done = list[Reservation]()
    for network in dict.fromkeys(each.network for each in some):
        with _locked(directory / _NETWORKS / network):
            for each in some:
                path = directory / _NETWORKS / network / each.name
                if each.network == network and _reservation_in(path) == each:
                    path.unlink()
                    done.append(each)
    return done


@contextmanager
def _locked(network: Path) -> Iterator[None]:
    descriptor = os.open(network / "lock", os.O_CREAT | os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, 0o750)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _reservation_in(path: Path) -> Reservation | None:
    """The reservation of a file; None: it is none, such as last_reserved_ip.0 and lock, or it is gone."""
    name = path.name
    try:
        packed = ip_address(name.replace("_", ":") if name.count("_") > 1 else name).packed
    except ValueError:
        return None
    network = path.parent.name
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            state = os.fstat(file.fileno())
            words = file.read(_LONGEST_NAME).decode(errors="replace").split("\n")
    except FileNotFoundError:
        return None
    except OSError as error:
        return Reservation(network, name, packed, obstacle=error.strerror or str(error))
    container, interface = (each.strip() for each in (*words, "")[:2])
    return Reservation(network, name, packed, container, interface, (state.st_ino, state.st_mtime_ns))


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)


def _pod_in(path: Path) -> CniPod | None:
    """The pod of a result; None: it is none.

    Of the interfaces in it those of the host come first, the one that leads to the pod as the last of these.
    """
    try:
        with path.open("rb") as file:
            document = object_in(json.loads(file.read(_LONGEST)))
    except (OSError, ValueError, RecursionError):
        return None
    result = object_in(document.get("result"))
    addresses = [_address(object_in(each).get("address")) for each in _list(result.get("ips"))]
    interfaces = [object_in(each) for each in _list(result.get("interfaces"))]
    outside = takewhile(lambda each: not each.get("sandbox"), interfaces)
    here = ["", "", *(name for each in outside if isinstance(name := each.get("name"), str))]
    gateways = [_address(object_in(each).get("gateway")) for each in _list(result.get("ips"))]
    configured = _configured(document.get("config"))
    return CniPod(
        tuple(address for address in addresses if address),
        here[-2],
        here[-1],
        tuple(gateway for gateway in gateways if gateway),
        has_hairpin=configured.get("hairpinMode") is True,
        is_isolated=configured.get("portIsolation") is True,
        container=_text(document.get("containerId")),
        inside=_text(document.get("ifName")),
        sandbox=next((name for each in interfaces if (name := _text(each.get("sandbox")))), ""),
        mac=next((_mac(each.get("mac")) for each in interfaces if each.get("sandbox")), b""),
    )


def _configured(text: object) -> Mapping[str, Any]:
    """The options of the plugin `bridge` in libcni's copy of a configuration; flannel's delegate has them too."""
    try:
        plugins = object_in(json.loads(base64.b64decode(text if isinstance(text, str) else "", validate=True)))
    except (ValueError, binascii.Error, RecursionError):
        return {}
    found = dict[str, Any]()
    for each in map(object_in, _list(plugins.get("plugins", [plugins]))):
        found |= object_in(each.get("delegate")) if each.get("type") == "flannel" else {}
        found |= each if each.get("type") == "bridge" else {}
    return found


def _address(text: object) -> bytes:
    try:
        return ip_interface(str(text)).packed
    except ValueError:
        return b""


def _mac(text: object) -> bytes:
    try:
        found = bytes.fromhex(str(text).replace(":", ""))
    except ValueError:
        return b""
    return found if len(found) == 6 else b""


def _files(path: Path, most: int = _MOST) -> list[Path]:
    try:
        return list(islice(path.iterdir(), most))
    except OSError:
        return []


def object_in(value: object) -> Mapping[str, Any]:
    """A JSON object; an empty one in the place of anything else."""
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
