"""The network configuration as etcd has it."""

from dataclasses import replace

from services.core.errors import InvalidInput
from services.core.network import NetworkConfig, parse_network
from services.lease.stores.etcd.keyspace import readable
from services.lease.stores.etcd.records import Item


def read_configuration(key: bytes, item: Item | None) -> tuple[NetworkConfig | None, str]:
    """The configuration, or None and what to do about it."""
    where = readable(key)
    if item is None:
        example = '{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}'
        return None, f"there is no network configuration in etcd yet: write it, etcdctl put {where} '{example}'"
    try:
        return replace(parse_network(item.value.decode("utf-8")), revision=item.revision), ""
    except UnicodeDecodeError:
        return None, f"etcd key {where}: the network configuration is not UTF-8 text; write it anew"
    except InvalidInput as error:
        return None, f"etcd key {where}: {error}"
