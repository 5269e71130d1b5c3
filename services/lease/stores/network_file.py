"""The network configuration in a file, for the stores that do not keep it themselves: embedded and Kubernetes."""

from pathlib import Path

from flannelette.services.core.errors import InvalidInput
from flannelette.services.core.network import NetworkConfig, parse_network
from flannelette.services.runtime.os.unreadable import why_unreadable


def read_network_file(path: Path, *, leases_subnets: bool = True) -> NetworkConfig:
    """flannel's JSON, read anew. Raises InvalidInput, with the file and what to do."""
    try:
        return parse_network(path.read_text(encoding="utf-8"), leases_subnets=leases_subnets)
    except FileNotFoundError:
        reason = (
            f"there is no network configuration {path}: write flannel's JSON there (in Kubernetes, mount the "
            "ConfigMap with net-conf.json), or name another file with --net-config-path"
        )
    except PermissionError as error:
        reason = f"the network configuration {path} {why_unreadable(path, error)}"
    except OSError as error:
        reason = f"cannot read the network configuration {path}: {error.strerror}"
    except InvalidInput as error:
        reason = f"{error} (in {path})"
    except ValueError:
        reason = f"the network configuration {path} is not UTF-8 text"
    raise InvalidInput(reason)
