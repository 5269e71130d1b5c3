"""The network configuration in a file, read once: as flannel does with Kubernetes."""

from dataclasses import replace
from pathlib import Path

from services.core.errors import InvalidInput, Misconfigured
from services.core.network import NetworkConfig, parse_network


def read_network_file(path: Path) -> NetworkConfig:
    """The configuration, with the time of the file. Raises Misconfigured: changing it takes a restart."""
    try:
        network = parse_network(path.read_text(encoding="utf-8"), leases_subnets=False)
        return replace(network, revision=int(path.stat().st_mtime))
    except FileNotFoundError:
        raise Misconfigured(
            f"there is no network configuration {path}: mount the ConfigMap with flannel's net-conf.json there, or "
            "name another file with --net-config-path"
        ) from None
    except OSError as error:
        raise Misconfigured(f"cannot read the network configuration {path}: {error.strerror}") from None
    except InvalidInput as error:
        raise Misconfigured(f"{error} (in {path}; start again when it is corrected)") from None
    except ValueError:
        raise Misconfigured(f"the network configuration {path} is not UTF-8 text") from None
