"""The network configuration in a file, read once: as flannel does with Kubernetes."""

from pathlib import Path

from services.core.errors import InvalidInput, Misconfigured
from services.core.network import NetworkConfig, parse_network


def read_network_file(path: Path) -> NetworkConfig:
    """The configuration. Raises Misconfigured: without it the process ends, and changing it takes a restart."""
    try:
        return parse_network(path.read_text(encoding="utf-8"), leases_subnets=False)
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
