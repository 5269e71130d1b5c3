"""The tables of docs/configuration.md: every key, flag, option and variable with its default, from the code.

`make pages` writes them, and those of docs/backends.md that have the options of one backend.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import click

from flannelette.services.cloud.main import CloudSettings
from flannelette.services.core.backend_types import BACKEND_TYPES, Option, declared_options
from flannelette.services.core.network import NetworkConfig, parse_network
from flannelette.services.ctl.connect.contexts import DaemonSet
from flannelette.services.ctl.main import cli
from flannelette.services.dataplane.backends import BACKENDS
from flannelette.services.dataplane.settings import DataplaneSettings
from flannelette.services.lease.settings import LeaseSettings
from flannelette.services.lease.stores.kube.values import annotations
from flannelette.services.masq.settings import MasqSettings
from flannelette.services.runtime.process.settings import ProcessSettings, variable_of
from tests.pages.reference.since import dated, record, recorded
from tests.pages.reference.tables import Rows, filled, table
from tests.paths import ROOT

PAGE: Final = ROOT / "docs/configuration.md"
BACKENDS_PAGE: Final = ROOT / "docs/backends.md"
_V4: Final = '{"Network": "10.5.0.0/16", "Backend": {"Type": "vxlan"}}'
_V6: Final = (
    '{"EnableIPv4": false, "EnableIPv6": true, "IPv6Network": "fd00:10:5::/48", "Backend": {"Type": "vxlan"}}'
)
NETWORK_KEYS: Final[Mapping[str, str]] = {
    "Network": "IPv4 network of the overlay, /28 or larger. Needed unless `EnableIPv4` is false",
    "SubnetLen": "Prefix length of a node's subnet",
    "SubnetMin": "The first subnet that a node may get",
    "SubnetMax": "The last subnet that a node may get",
    "EnableIPv4": "Whether the overlay has IPv4",
    "EnableIPv6": "Whether the overlay has IPv6; with both, a node gets a subnet of each family",
    "IPv6Network": "IPv6 network of the overlay, /124 or larger. Needed with `EnableIPv6`",
    "IPv6SubnetLen": "Prefix length of a node's IPv6 subnet",
    "IPv6SubnetMin": "The first IPv6 subnet that a node may get",
    "IPv6SubnetMax": "The last IPv6 subnet that a node may get",
    "EnableNFTables": "Whether masq keeps its rules in nftables tables of its own, with `--firewall=auto`",
    "NoMasquerade": "Networks that pods reach under their own addresses, with `--ip-masq`: "
    '`["10.0.0.0/8"]`. Their hosts need a route back to pods. `--ip-masq-exclude` of masq says it for one node',
    "Backend": "How packets travel: an object with `Type` and the options of that backend, below. "
    "Name one: flannel's documentation says that the default is vxlan, its code that it is udp",
}
VARIABLES: Final[Mapping[str, str]] = {
    "NODE_NAME": "Name of this node where `--node` is not given",
    "POD_NAME": "Pod of the lease service, which it asks for its node without `NODE_NAME`, as flanneld does",
    "POD_NAMESPACE": "Namespace of that pod",
    "KUBERNETES_SERVICE_HOST": "API server of a pod, without `--kube-api-url` and `--kubeconfig-file`",
    "KUBERNETES_SERVICE_PORT": "Its port",
    "WIREGUARD_KEY_FILE": "File of the dataplane's private key, as for flanneld ([wireguard](backends.md#wireguard))",
    "XTABLES_LOCKFILE": "Lock file of legacy iptables, for masq. Default: `/run/xtables.lock`",
    "AWS_REGION": "Region of the VPC, for flannelette-cloud; boto3 reads its own AWS_ variables too",
    "ACCESS_KEY_ID": "Key for flannelette-cloud, as for flanneld ([ali-vpc](backends.md#ali-vpc))",
    "ACCESS_KEY_SECRET": "Its secret",
    "NOTIFY_SOCKET": "systemd's, for `Type=notify`",
    "FLANNELETTE_CONTEXTS": "Contexts file of `flannelette`. Default: `~/.config/flannelette/contexts.toml`",
    "XDG_CONFIG_HOME": "What is in the place of `~/.config` there",
}
"""Those that are not the other name of a flag or an option."""
CONTEXT_KEYS: Final[Mapping[str, str]] = {
    "socket_dir": "Directory of the services' sockets on the node",
    "lease": "Address of the lease service",
    "dataplane": "Address of the dataplane",
    "masq": "Address of masq",
    "tls_cert_file": "Your certificate, for TCP with TLS",
    "tls_key_file": "Its key",
    "tls_ca_file": "Authorities of the services' certificates",
    "tls_server_name": "Name in the services' certificates",
    "network": "Network of the node, if it has several",
    "via": "Command that runs others on the node, such as `ssh {node} sudo`: no port needs to be open",
    "kubernetes": "`true`: the nodes are those of a DaemonSet's pods, which `kubectl exec` reaches",
    "kubectl": "With `kubernetes`: the command and its options. Default: `KUBECTL`",
    "namespace": "With `kubernetes`: namespace of the pods. Default: `NAMESPACE`",
    "selector": "With `kubernetes`: label of the pods. Default: `SELECTOR`",
}
_FLAGS: Final = ("flag, variable", "default", "meaning")


def page() -> str:
    """The page as it should be."""
    return filled(PAGE, {name: partial(_table, name) for name in ROWS})


def backends_page() -> str:
    """docs/backends.md as it should be. The commands of extension have a table of another form, which is written."""
    with_options = (name for name in sorted(BACKENDS) if declared_options(BACKEND_TYPES[name]))
    head = ("option", "values", "default", "since", "meaning")
    rows = {name: partial(_options_of, name) for name in with_options if name != "extension"}
    return filled(BACKENDS_PAGE, {name: lambda made=made: table(head, made()) for name, made in rows.items()})  # type: ignore[misc]  # it has a default


def _network() -> Iterator[tuple[str, ...]]:
    defaults = {
        **_subnets(parse_network(_V4), "", "/22"),
        **_subnets(parse_network(_V6), "IPv6", "/62"),
        "EnableIPv4": "`true`",
        "EnableIPv6": "`false`",
        "EnableNFTables": "`false`",
        "Backend": '`{"Type": "udp"}`',
    }
    for key, meaning in NETWORK_KEYS.items():
        yield f"`{key}`", defaults.get(key, ""), meaning


def _subnets(network: NetworkConfig, prefix: str, least: str) -> dict[str, str]:
    """The defaults in an example."""
    (family,) = network.families
    return {
        f"{prefix}SubnetLen": f"`{family.subnet_length}`; in a network smaller than {least} its length + 2",
        f"{prefix}SubnetMin": f"the second: in {family.cidr} `{family.subnet_min}`",
        f"{prefix}SubnetMax": f"the last: in {family.cidr} `{family.subnet_max}`",
    }


def _backends() -> Iterator[tuple[str, ...]]:
    for name in sorted(BACKENDS):
        link = f"[`{name}`](backends.md#{name})"
        for option in _options_of(name):
            yield link, *option
        if not declared_options(BACKEND_TYPES[name]):
            yield link, "none", "", "", BACKEND_TYPES[name].since, ""


def _options_of(name: str) -> Iterator[tuple[str, ...]]:
    backend = BACKEND_TYPES[name]
    for option in declared_options(backend).values():
        default = option.otherwise or _default(option.default) or "none"
        yield f"`{option.name}`", _values(option), default, option.since or backend.since, option.text


def _values(option: Option) -> str:
    if isinstance(option.default, bool):
        return "`true`, `false`"
    if isinstance(option.default, int):
        return f"{option.least} to {option.most}"
    if isinstance(option.default, tuple):
        return "text or list"
    if option.choices:
        return ", ".join(f"`{each}`" for each in option.choices)
    return "text, never shown" if option.is_secret else "text"


def _flags(kind: type[Any], without: type[Any] | None = None) -> Iterator[tuple[str, ...]]:
    known = {field.name for field in dataclasses.fields(without)} if without else set()
    for field in dataclasses.fields(kind):
        if field.metadata and field.name not in known:
            name = field.metadata["flag"] or field.name.replace("_", "-")
            meaning = field.metadata["meaning"]
            if choices := field.metadata["choices"]:
                meaning += f" One of {', '.join(choices)}."
            names = filter(None, (f"--{name}", variable_of(name)))
            yield "<br>".join(f"`{each}`" for each in names), _default(field.default), meaning


def _default(value: object) -> str:
    if value in ("", (), b""):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _options() -> Iterator[tuple[str, ...]]:
    for option in cli.params:
        if isinstance(option, click.Option) and option.help:
            names = ", ".join(f"`{each}`" for each in option.opts)
            variable = f"<br>`{option.envvar}`" if option.envvar else ""
            yield names + variable, " ".join(option.help.replace("[d", "(d").replace("]", ")").split())


def _contexts() -> Iterator[tuple[str, ...]]:
    for key, meaning in CONTEXT_KEYS.items():
        default = dataclasses.asdict(DaemonSet()).get(key, "")
        yield f"`{key}`", meaning.replace(key.upper(), default)


def _annotations() -> Iterator[tuple[str, ...]]:
    keys = annotations()
    yield f"`{keys.managed}`", "`true`: flannel runs on this node. `false`: it did, and gave its lease back"
    yield f"`{keys.backend_type}`", "`Type` of the backend; none for udp and alloc"
    for family in (keys.ipv4, keys.ipv6):
        yield f"`{family.public}`", "Address that other nodes send to"
        yield f"`{family.data}`", "What the backend tells the other nodes, such as a MAC address or a public key"
        yield f"`{family.overwrite}`", "An operator's: the address to publish, whatever the node finds out"
        yield f"`{family.chosen}`", "An operator's: the address of the node, as by `--public-ip`"


ROWS: Final[Mapping[str, tuple[tuple[str, ...], Callable[[], Rows]]]] = {
    "network": (("key", "default", "meaning"), _network),
    "backends": (("`Type`", "option", "values", "default", "since", "meaning"), _backends),
    "every service": (_FLAGS, partial(_flags, ProcessSettings)),
    **{
        name: (_FLAGS, partial(_flags, kind, without=ProcessSettings))
        for name, kind in (
            ("lease", LeaseSettings),
            ("dataplane", DataplaneSettings),
            ("masq", MasqSettings),
            ("cloud", CloudSettings),
        )
    },
    "options": (("option, variable", "meaning"), _options),
    "contexts": (("key", "meaning"), _contexts),
    "variables": (("variable", "meaning"), lambda: ((f"`{name}`", text) for name, text in VARIABLES.items())),
    "annotations": (("annotation", "meaning"), _annotations),
}
"""The head and the rows of each table, without the releases where `since` records them."""


def _table(name: str) -> str:
    head, rows = ROWS[name]
    if "since" in head:
        return table(head, rows())
    return table((*head[:-1], "since", head[-1]), dated(name, rows(), recorded()))


def main() -> None:
    """Writes both pages, and records which release each row is from."""
    record({name: rows() for name, (head, rows) in ROWS.items() if "since" not in head})
    PAGE.write_text(page())
    BACKENDS_PAGE.write_text(backends_page())


if __name__ == "__main__":
    main()
