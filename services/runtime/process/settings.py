"""Settings: Go's flag syntax and flannel's environment variables, parsed once into a frozen dataclass.

A settings class is a frozen dataclass whose fields are made by `flag`, and one of them perhaps by `given`. The
command line wins over the environment (`FLANNELD_` + upper case, `-` to `_`; empty means unset), which wins over the
default. Those that all services share are here, too, and what follows from them: node name, addresses, TLS.
"""

import dataclasses
import os
import re
import socket
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

from flannelette.services.core.errors import Misconfigured
from flannelette.services.core.formats.text import word_list
from flannelette.services.core.limits import MOST_LEASES
from flannelette.services.runtime.networks import (
    NETWORK_FLAG,
    SOCKET_DIR,
    NodeNetwork,
    moved_address,
    network_of,
    socket_address,
    suffix_of,
)
from flannelette.services.runtime.rpc.transport import Transport
from flannelette.services.runtime.tls import Credentials, chosen_files

S = TypeVar("S")

_TRUE: Final = frozenset("1 t T TRUE true True".split())
_FALSE: Final = frozenset("0 f F FALSE false False".split())

_PREFIX: Final = "FLANNELD_"
_OF_KUBERNETES: Final = re.compile(r"FLANNELD_(SERVICE_(HOST|PORT)(_.*)?|PORT(_\d+_(TCP|UDP|SCTP)(_.*)?)?)")
"""Variables that a kubelet sets in pods beside a Service of the name `flanneld`."""
_OCTAL: Final = re.compile(r"[+-]?0[0-7_]+")

FLAGS: Final[Mapping[str, str]] = {
    "lease": "network store central lease-seconds guard-share guard-seconds net-config-path store-file upstream "
    "import export etcd-endpoints etcd-prefix etcd-keyfile etcd-certfile etcd-cafile etcd-username etcd-password "
    "kube-subnet-mgr kube-api-url kubeconfig-file kube-annotation-prefix "
    "set-node-network-unavailable",
    "dataplane": "network lease-address iface iface-regex iface-can-reach public-ip public-ipv6 subnet-file "
    "state-dir cni-state-dir subnet-lease-renew-margin allowed-network never-route ip-blackhole-route "
    "cni-install-path cni-config-path ip-masq route-protocol checksum-offload audit-interval "
    "allow-extension-commands extension-timeout charon-socket probe-rate path-mtu",
    "masq": "network lease-address state-dir ip-masq ip-masq-exclude ip-masq-source ip-masq-fully-random-disable "
    "clamp-mss iptables-forward-rules firewall fabric-guard fabric-guard-source pod-guard cni-state-dir "
    "allowed-network iptables-resync",
    "cloud": "lease-address state-dir cloud-interval cloud-mark cloud-routes-limit cloud-endpoint cloud-metadata",
}
"""The flags of each service beside those that all have, for the hint about an unknown flag. A test compares them."""
PURPOSES: Final[Mapping[str, str]] = {
    "lease": "Keeps the leases (which node holds which subnet) in etcd, in Kubernetes or in an embedded store, and "
    "streams every change to its watchers. Needs no privileges.",
    "dataplane": "Keeps the devices, routes, neighbours and forwarding entries of the overlay in the kernel of this "
    "node, and holds the node's lease. Needs NET_ADMIN, and NET_RAW for probes of peers and captures.",
    "masq": "Keeps the masquerade and forward rules of this node's pods in iptables or nftables. Needs NET_ADMIN, "
    "and NET_RAW for legacy iptables.",
    "cloud": "Writes the routes of all nodes into the cloud's tables, for a network with the backend of a cloud. It "
    "alone has the cloud's credentials. Needs no privileges.",
    "flannelette flanneld": "Runs the lease service, the dataplane and masq instead of flanneld.",
}
"""The purpose of a service, for `--help`."""


class HelpRequested(Exception):
    """`-h` or `--help` was given; the message is the help text."""


def flag(default: Any, meaning: str, *, name: str = "", choices: Sequence[str] = ()) -> Any:
    """A field of a settings class. `meaning` is its help text; `name` is the flag if not the field's own name."""
    return dataclasses.field(default=default, metadata={"meaning": meaning, "flag": name, "choices": tuple(choices)})


def given() -> Any:
    """A field of a settings class: how each setting was given, `--name` or `FLANNELD_NAME`, by the field's name."""
    return dataclasses.field(default_factory=dict, repr=False, compare=False)


def parse_settings(kind: type[S], program: str, arguments: Sequence[str], environment: Mapping[str, str]) -> S:
    """The settings. Raises Misconfigured, naming the flag or the variable, or HelpRequested."""
    fields = _flags(kind)
    hints = get_type_hints(kind)
    texts: dict[str, list[str]] = {}
    pairs, rest = _parsed(arguments, fields, hints)
    for name, text in pairs:
        if name in ("h", "help"):
            raise HelpRequested(usage(program, kind))
        texts.setdefault(name, []).append(text)
    if rest:
        meant = _value_apart(arguments, rest) or "--name=value (--help lists them)"
        raise Misconfigured(f"{rest[0]!r} is not a flag: write {meant}")
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for name, field in fields.items():
        variable = variable_of(name)
        if name in texts:
            sources[field.name] = f"--{name}"
        elif environment.get(variable):
            sources[field.name], texts[name] = variable, [environment[variable]]
        else:
            continue
        values[field.name] = _convert(sources[field.name], field, hints[field.name], texts[name])
    if "given" in hints:
        values["given"] = sources
    return kind(**values)


def split_flags(
    program: str,
    kinds: Mapping[str, type[Any]],
    arguments: Sequence[str],
    defaults: Mapping[str, str],
    meanings: Mapping[str, str],
) -> tuple[dict[str, list[str]], str]:
    """The flags of each settings class, as `--name=value`, and a warning about words that are no flags, or none.

    A flag that several classes have goes to each of them. Words from the first one on that is no flag have no
    effect, as with Go's package flag. Raises Misconfigured for an unknown flag, HelpRequested with the flags of all
    classes. `defaults` has defaults that differ from those of the classes, and `meanings` what flags mean here alone.
    """
    fields = {name: field for kind in kinds.values() for name, field in _flags(kind).items()}
    hints = {name: hint for kind in kinds.values() for name, hint in get_type_hints(kind).items()}
    shares: dict[str, list[str]] = {each: [] for each in kinds}
    pairs, rest = _parsed(arguments, fields, hints)
    for name, text in pairs:
        if name in ("h", "help"):
            raise HelpRequested(usage(program, *kinds.values(), defaults=defaults, here=meanings))
        for each, kind in kinds.items():
            if name in _flags(kind):
                shares[each].append(f"--{name}={text}")
    return shares, _ignored(arguments, rest) if rest else ""


def _ignored(arguments: Sequence[str], rest: Sequence[str]) -> str:
    meant = _value_apart(arguments, rest)
    cure = f"write {meant}" if meant else "remove it, or write --name=value"
    behind = f", and so have the words after it: {' '.join(rest[1:])}" if rest[1:] else ""
    return f"{rest[0]!r} is no flag and has no effect, as with flanneld{behind}; {cure}"


def unknown_variables(kind: type[Any], environment: Mapping[str, str]) -> dict[str, str]:
    """The variables FLANNELD_... that no flag of any service has, and a line about each with the nearest one."""
    names = {*_flags(kind), *(name for flags in FLAGS.values() for name in flags.split())}
    known = sorted(filter(None, map(variable_of, names)))
    lines = {}
    for variable in sorted(environment):
        if variable.startswith(_PREFIX) and variable not in known and not _OF_KUBERNETES.fullmatch(variable):
            import difflib  # for a mistake only

            near = difflib.get_close_matches(variable, known, n=1, cutoff=0.8)
            meant = f": did you mean {near[0]}?" if near else ""
            lines[variable] = f"no flag has the variable {variable}, which has no effect{meant}"
    return lines


def variable_of(flag_name: str) -> str:
    """The environment variable of a flag, as flannel names it; empty: --version, which has none there either."""
    return "" if flag_name == "version" else _PREFIX + flag_name.upper().replace("-", "_")


def usage(
    program: str,
    *kinds: type[Any],
    defaults: Mapping[str, str] = MappingProxyType({}),
    here: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """The help text, at most 80 columns wide; a flag of several classes appears once, with each of its meanings."""
    meanings: dict[str, list[str]] = {}
    for name, field in (row for kind in kinds for row in _flags(kind).items()):
        known = meanings.setdefault(name, [])
        if (meaning := here.get(name) or _meaning(field, defaults)) not in known:
            known.append(meaning)
    lines = [f"Usage: {program} [flags]", ""]
    if purpose := PURPOSES.get(program.removeprefix("flannelette-")):
        lines += [*textwrap.wrap(purpose, 78, initial_indent="  ", subsequent_indent="  "), ""]
    for name, known in meanings.items():
        lines.append(f"  --{name}")
        for meaning in known:
            indent = " " * 6
            lines += textwrap.wrap(
                meaning, 80, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
            )
    lines += ["", "Each flag may also be set as FLANNELD_NAME, for instance", f"{variable_of('healthz-port')}=8471."]
    return "\n".join(lines)


def _meaning(field: "dataclasses.Field[Any]", defaults: Mapping[str, str]) -> str:
    default = defaults.get(_flag_name(field), field.default)
    shown = "" if default in ("", (), False) else f" (default {str(default).lower() if default is True else default})"
    choices = f" One of {', '.join(field.metadata['choices'])}." if field.metadata["choices"] else ""
    return f"{field.metadata['meaning']}{choices}{shown}"


def _flags(kind: type[Any]) -> "dict[str, dataclasses.Field[Any]]":
    """The fields of a settings class that are flags, by the flag."""
    return {_flag_name(field): field for field in dataclasses.fields(kind) if field.metadata}


def _flag_name(field: "dataclasses.Field[Any]") -> str:
    return field.metadata["flag"] or field.name.replace("_", "-")


def _parsed(
    arguments: Sequence[str], fields: Mapping[str, "dataclasses.Field[Any]"], hints: Mapping[str, Any]
) -> tuple[list[tuple[str, str]], list[str]]:
    """(flag, text) pairs, and the words that are left, by the rules of Go's package flag.

    A boolean never takes the next word. Parsing ends at the first word that is no flag, at `--`, and at a request for
    help, which is the last pair then. Raises Misconfigured for an unknown flag, and for one without its value.
    """
    pairs: list[tuple[str, str]] = []
    rest = list(arguments)
    while rest and len(rest[0]) > 1 and rest[0].startswith("-"):
        word = rest.pop(0)
        if word == "--":
            break
        name, equals, text = word.removeprefix("-").removeprefix("-").partition("=")
        if not name or name.startswith("-"):
            raise Misconfigured(f"{word!r} is not a flag: write --name=value (--help lists them)")
        if name in ("h", "help") and name not in fields:
            return [*pairs, (name, "")], rest
        if name not in fields:
            raise Misconfigured(_unknown(name, fields))
        if not equals and hints[fields[name].name] is bool:
            text = "true"
        elif not equals:
            if not rest:
                raise Misconfigured(f"--{name} needs a value")
            text = rest.pop(0)
        pairs.append((name, text))
    return pairs, rest


def _value_apart(arguments: Sequence[str], rest: Sequence[str]) -> str:
    """The last flag with the first word that is left, `--ip-masq=false`; empty: that word is no boolean's value."""
    before = arguments[: len(arguments) - len(rest)]
    if not before or "=" in before[-1] or rest[0] not in _TRUE | _FALSE:
        return ""
    return f"--{before[-1].lstrip('-')}={rest[0]}"


def _unknown(name: str, fields: Iterable[str]) -> str:
    """The error for an unknown flag: names the service that has the flag, or the nearest flag."""
    if owners := [f"flannelette-{service}" for service, flags in FLAGS.items() if name in flags.split()]:
        return f"there is no flag --{name} here: it is a flag of {word_list(owners, 'and')}"
    import difflib  # for a mistake only

    if near := difflib.get_close_matches(name, fields, n=1):
        return f"there is no flag --{name}: did you mean --{near[0]}? (--help lists them)"
    return f"there is no flag --{name} (--help lists them)"


def _convert(source: str, field: "dataclasses.Field[Any]", hint: Any, texts: Sequence[str]) -> Any:
    if get_origin(hint) is tuple:
        inner = get_args(hint)[0]
        return tuple(_convert_one(source, field, inner, text) for text in texts)
    return _convert_one(source, field, hint, texts[-1])


def _convert_one(source: str, field: "dataclasses.Field[Any]", hint: Any, text: str) -> Any:
    choices = field.metadata["choices"]
    if choices and text not in choices:
        raise Misconfigured(f"{source} is {text!r}: use one of {', '.join(choices)}")
    if hint is bool:
        if text in _TRUE or text in _FALSE:
            return text in _TRUE
        raise Misconfigured(f"{source} is {text!r}: use true or false")
    if hint is Path:
        return Path(text)
    if hint is str:
        return text
    try:
        return _whole_number(text) if hint is int else hint(text)
    except ValueError:
        raise Misconfigured(f"{source} is {text!r}: use a {'whole ' if hint is int else ''}number") from None


def _whole_number(text: str) -> int:
    """A number in one of Go's spellings: 16, 0x10, 0o20, 0b10000, and 020, which is octal. Raises ValueError."""
    if text != text.strip():
        raise ValueError(text)
    return int(text, 8 if _OCTAL.fullmatch(text) else 0)


@dataclass(frozen=True, kw_only=True)
class ProcessSettings:
    """The flags of every service, beside its own."""

    node: str = flag("", "Name of this node. Default: NODE_NAME, else the host name in lower case.")
    socket_dir: Path = flag(
        SOCKET_DIR,
        "Directory of the services' unix sockets. Beside the default one, flannelette-lease and flannelette-cloud "
        "have theirs in /run/flannelette-lease and /run/flannelette-cloud, where these are there.",
    )
    listen: str = flag(
        "",
        "Addresses to serve on, separated by commas: unix:PATH, or HOST:PORT, which needs the --tls flags unless it "
        "is on loopback. Default: NAME.sock in --socket-dir.",
    )
    tls_cert_file: str = flag(
        "",
        "PEM file of this service's certificate, for its clients over TCP and for the lease service that it connects "
        "to over TCP. Replaced files of all three flags are read without a restart.",
    )
    tls_key_file: str = flag("", "PEM file of the key of that certificate.")
    tls_ca_file: str = flag("", "PEM file of the authorities whose certificates this service accepts.")
    tls_server_name: str = flag(
        "", "Name in the lease service's certificate. Default: the host of the service's address."
    )
    dangerously_without_tls: bool = flag(
        False,
        "Use TCP beyond loopback without TLS: any client that reaches the address may take every lease, and an "
        "attacker on the path may redirect every pod's packets.",
    )
    healthz_ip: str = flag(
        "0.0.0.0",  # noqa: S104 - flannel's default
        "IP address of the HTTP server for /healthz, /readyz and /metrics; or unix:PATH, which needs no port.",
    )
    healthz_port: int = flag(0, "Port of that HTTP server; 0 switches it off.")
    max_leases: int = flag(
        MOST_LEASES,
        "Largest number of leases to accept from a lease service, or to give to nodes.",
    )
    max_connections: int = flag(
        16_384,
        "Largest number of connections to one listening address; less if the limit of descriptors is lower, or if "
        "they would take more than three quarters of the memory that the process may have, at 96 KiB each.",
    )
    max_connections_per_address: int = flag(
        256,
        "Largest number of TCP connections from one IPv4 address or one /64 of IPv6. Raise the limit for nodes "
        "behind one NAT or load balancer.",
    )
    network_namespace_file: str = flag(
        "",
        "File with the output of `readlink /proc/self/ns/net`, written by the owner of the network namespace that "
        "this service shares. The service ends if the file names another namespace.",
    )
    log_format: str = flag("console", "Format of the log.", choices=("console", "json"))
    v: int = flag(0, "Log level: 0 logs changes, 1 and more also their causes.")
    vmodule: str = flag("", "Accepted for compatibility with flannel; no effect.")
    log_backtrace_at: str = flag("", "Accepted for compatibility with flannel; no effect.", name="log_backtrace_at")
    version: bool = flag(False, "Print the version and exit.")

    @property
    def served_network(self) -> str:
        """The name of the network that the process serves; empty: it has no name, or this is flannelette-cloud."""
        return ""

    @property
    def socket_suffix(self) -> str:
        """The part of the socket's name that follows the name of the service: `-blue` for the network blue."""
        return suffix_of(self.served_network)


@dataclass(frozen=True, kw_only=True)
class NodeSettings(ProcessSettings):
    """The flags of a service that changes a node, for the network that it serves."""

    network: tuple[str, ...] = flag((), NETWORK_FLAG)
    lease_address: str = flag(
        "", "Address of the lease service: unix:PATH or HOST:PORT. Default: lease.sock in --socket-dir."
    )

    @property
    def node_network(self) -> NodeNetwork:
        """What `--network` says. Raises Misconfigured."""
        return network_of(self.network, self.lease_address, self.socket_dir)

    @property
    def served_network(self) -> str:
        """See ProcessSettings."""
        return self.node_network.name


def node_name(settings: ProcessSettings, environment: Mapping[str, str] = os.environ) -> str:
    """The name of this node: `--node`, else NODE_NAME, else the host name in lower case."""
    return settings.node or environment.get("NODE_NAME") or socket.gethostname().lower()


def listen_addresses(settings: ProcessSettings, service: str) -> list[str]:
    """The addresses that a service listens on: `--listen`, else its socket in `--socket-dir`."""
    return (
        [*map(moved_address, settings.listen.split(","))]
        if settings.listen
        else [socket_address(settings.socket_dir, service, settings.socket_suffix)]
    )


def transport_of(settings: ProcessSettings) -> Transport:
    """The TLS setting of the process. Reads the TLS files. Raises Misconfigured."""
    files = chosen_files(settings.tls_cert_file, settings.tls_key_file, settings.tls_ca_file)
    return Transport(
        Credentials(files) if files else None, settings.tls_server_name, settings.dangerously_without_tls
    )
