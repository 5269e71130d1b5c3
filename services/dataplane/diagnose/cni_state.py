"""What CNI's plugins have written about the pods of this node: addresses, and the host's ends of their interfaces.

libcni keeps the result of each ADD until the DEL (`results/NETWORK-CONTAINER-IFNAME`), and the plugin `host-local` a
file for each address that it has given (`networks/NETWORK/ADDRESS`). Both may be of pods that are gone.
"""

import base64
import binascii
import json
from collections.abc import Iterator, Mapping
from ipaddress import ip_address, ip_interface
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, Final

from flannelette.services.dataplane.diagnose.seen import CniPod, CniPods

_RESULTS: Final = ("results", "cache/results")
"""Directories of results: of container runtimes, and of kubelets before 1.24."""
_MOST: Final = 2_000
_LONGEST: Final = 256 * 1024
"""Largest size of a result, in bytes."""


def cni_pods(directory: Path) -> CniPods:
    """The pods that are on record in CNI's directory, which is /var/lib/cni."""
    obstacle = ""
    for place in (directory, *(directory / each for each in _RESULTS)):
        try:
            next(place.iterdir(), None)
        except OSError as error:
            if place == directory or isinstance(error, PermissionError):  # others need not be there
                obstacle = obstacle or f"{place} cannot be read here ({error.strerror})"
    pods = [pod for place in _RESULTS for path in _files(directory / place) if (pod := _pod_in(path)) is not None]
    known = {address for pod in pods for address in pod.addresses}
    networks = (path for path in _files(directory / "networks") if path.is_dir())
    given = (address for path in networks for address in _given(path))
    return CniPods(
        (*pods, *(CniPod((address,)) for address in dict.fromkeys(given) if address not in known)), obstacle
    )


def _pod_in(path: Path) -> CniPod | None:
    """The pod of a result; None: it is none.

    Of the interfaces in it those of the host come first, the one that leads to the pod as the last of these.
    """
    try:
        with path.open("rb") as file:
            document = _object(json.loads(file.read(_LONGEST)))
    except (OSError, ValueError, RecursionError):
        return None
    result = _object(document.get("result"))
    addresses = [_address(_object(each).get("address")) for each in _list(result.get("ips"))]
    interfaces = [_object(each) for each in _list(result.get("interfaces"))]
    outside = takewhile(lambda each: not each.get("sandbox"), interfaces)
    here = ["", "", *(name for each in outside if isinstance(name := each.get("name"), str))]
    gateways = [_address(_object(each).get("gateway")) for each in _list(result.get("ips"))]
    configured = _configured(document.get("config"))
    return CniPod(
        tuple(address for address in addresses if address),
        here[-2],
        here[-1],
        tuple(gateway for gateway in gateways if gateway),
        has_hairpin=configured.get("hairpinMode") is True,
        is_isolated=configured.get("portIsolation") is True,
    )


def _configured(text: object) -> Mapping[str, Any]:
    """The options of the plugin `bridge` in libcni's copy of a configuration; flannel's delegate has them too."""
    try:
        plugins = _object(json.loads(base64.b64decode(text if isinstance(text, str) else "", validate=True)))
    except (ValueError, binascii.Error, RecursionError):
        return {}
    found = dict[str, Any]()
    for each in map(_object, _list(plugins.get("plugins", [plugins]))):
        found |= _object(each.get("delegate")) if each.get("type") == "flannel" else {}
        found |= each if each.get("type") == "bridge" else {}
    return found


def _given(path: Path) -> Iterator[bytes]:
    """The addresses of a network that `host-local` has given; IPv6 has an underscore for each colon on some hosts."""
    for each in _files(path):
        try:
            yield ip_address(each.name.replace("_", ":") if each.name.count("_") > 1 else each.name).packed
        except ValueError:
            continue  # last_reserved_ip.0, lock


def _address(text: object) -> bytes:
    try:
        return ip_interface(str(text)).packed
    except ValueError:
        return b""


def _files(path: Path) -> list[Path]:
    try:
        return list(islice(path.iterdir(), _MOST))
    except OSError:
        return []


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
