"""What each network of this network namespace uses, said to the others: address ranges, devices, route marks.

A claim is a name, `@flannelette/SERVICE/NETWORK/KIND/VALUE`, that only a process with the right to change the
namespace can hold: see names.py.
"""

import socket
from collections.abc import Container, Iterable, Iterator
from contextlib import ExitStack, closing
from ipaddress import ip_network
from typing import Final, NamedTuple, Self

from flannelette.services.core.errors import InvalidInput
from flannelette.services.runtime.os.names import HeldName, holders

_NO_NAME: Final = "default"
MARK: Final = "route protocol"
RANGE: Final = "range"
DEVICE: Final = "device"
UDP_PORT: Final = "UDP port"


class NameClaim(NamedTuple):
    """One thing that only one network of a service can have."""

    kind: str
    """`range`, or one whose values are compared by their first word, such as `UDP port`."""
    value: str
    """What stands after the first word is for people, but that of a `UDP port`: devices of VXLAN share one."""

    def excludes(self, other: "NameClaim") -> bool:
        """Whether two networks cannot have both."""
        if self.kind != other.kind:
            return False
        if self.kind == RANGE:
            one, two = ip_network(self.value), ip_network(other.value)
            return one.version == two.version and one.overlaps(two)
        same = self.value.partition(" ")[0] == other.value.partition(" ")[0]
        return same and not (self.kind == UDP_PORT and self == other and self.value.endswith(" vxlan"))


class Claims:
    """The claims of one network of a service."""

    def __init__(self, service: str, network: str) -> None:
        self._prefix = claims_of(service)
        self._network = network or _NO_NAME
        self._held: dict[NameClaim, HeldName] = {}

    def check(self, claims: Iterable[NameClaim]) -> None:
        """Raises InvalidInput as `take` does, and takes nothing."""
        self._refuse(claims, list(self.others()))

    def take(self, claims: Iterable[NameClaim]) -> None:
        """Takes these claims and gives back all others but devices, which stay until `keep_devices`.

        Raises InvalidInput, naming both networks; then all claims stay as they are.
        """
        wanted = dict.fromkeys(claims)
        self._refuse(wanted, list(self.others()))
        with ExitStack() as opened:
            new = {
                claim: opened.enter_context(closing(self._bound(claim)))
                for claim in wanted
                if claim not in self._held
            }
            # Of two that take it at this moment one sees the other here: the first by name goes on.
            self._refuse(wanted, [(name, claim) for name, claim in self.others() if name < self._network])
            opened.pop_all()
        for claim in [claim for claim in self._held if claim not in wanted and claim.kind != DEVICE]:
            self._held.pop(claim).close()
        self._held |= new

    def keep_devices(self, names: Container[str]) -> None:
        """Gives back the claims of devices that have none of these names."""
        for claim in [c for c in self._held if c.kind == DEVICE and c.value.partition(" ")[0] not in names]:
            self._held.pop(claim).close()

    def others(self) -> Iterator[tuple[str, NameClaim]]:
        """The claims of other networks, by name."""
        for each in holders(self._prefix):
            name, _, rest = each.name.removeprefix(self._prefix).partition("/")
            kind, _, value = rest.partition("/")
            if each.is_rightful and name != self._network and _is_readable(kind, value):
                yield name, NameClaim(kind, value)

    def is_free(self, claim: NameClaim) -> bool:
        """Whether this claim excludes no claim of another network."""
        return not any(claim.excludes(other) for _, other in self.others())

    def of_others(self, kind: str) -> frozenset[str]:
        """The first words of what other networks claim of this kind: names of devices, say."""
        return frozenset(claim.value.partition(" ")[0] for _, claim in self.others() if claim.kind == kind)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Gives back all claims that are held."""
        while self._held:
            self._held.popitem()[1].close()

    def _refuse(self, wanted: Iterable[NameClaim], others: list[tuple[str, NameClaim]]) -> None:
        for claim in wanted:
            for name, other in others:
                if claim.excludes(other):
                    raise InvalidInput(
                        f"{claim.kind} {claim.value} of network {self._network} and {other.kind} {other.value} of "
                        f"network {name}, which is on this host too, cannot be there at once: change one of them"
                    )

    def _bound(self, claim: NameClaim) -> HeldName:
        name = f"{self._prefix}{self._network}/{claim.kind}/{claim.value}"
        try:
            return HeldName(name, socket.SOCK_DGRAM)
        except OSError as error:
            raise InvalidInput(f"{claim.kind} {claim.value} cannot be claimed: {error.strerror or error}") from None


def claims_of(service: str) -> str:
    """Beginning of the names of all claims of a service."""
    return f"flannelette/{service}/"


def _is_readable(kind: str, value: str) -> bool:
    try:
        return kind != RANGE or bool(ip_network(value))
    except ValueError:
        return False
