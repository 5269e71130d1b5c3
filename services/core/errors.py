"""The error tree, named for what the caller should do.

    FlanneletteError
    ├── InvalidInput       correct the request or the setting; repeating it is useless
    │   └── Misconfigured  the process cannot start like this: exit 1
    ├── NotFound           it is not there (any more)
    ├── AlreadyExists      it is there already
    ├── NotYet             wait, or make the condition true that the message names
    │   └── NameTaken      another machine has the node's name: rename one of them
    ├── Exhausted          nothing is left to give
    ├── LostRace           another writer was faster: try again
    ├── Forbidden          this is another node's business
    ├── NotImplementedYet  this version or this store does not do that
    └── Unavailable        something we need is away: retry with back-off

Every message is one sentence or two: what is wrong, and what to do about it. `services/runtime/rpc/interceptor.py`
alone knows which gRPC status each one is.
"""


class FlanneletteError(Exception):
    """The base: whatever we raise on purpose."""


class InvalidInput(FlanneletteError):
    """The request or the setting is wrong; the message says what it should be."""


class Misconfigured(InvalidInput):
    """The process cannot start like this; the message says which setting and what to do."""


class NotFound(FlanneletteError):
    """The object does not exist, or does not exist any more."""


class AlreadyExists(FlanneletteError):
    """The object exists already."""


class NotYet(FlanneletteError):
    """A condition does not hold yet; the message names it. Waiting, or an operator, can help."""


class NameTaken(NotYet):
    """Another machine has the name of the node, and is alive."""


class Exhausted(FlanneletteError):
    """No free resource is left; the message has the numbers."""


class LostRace(FlanneletteError):
    """Another writer changed the same thing first. Nothing was done; try again."""


class Forbidden(FlanneletteError):
    """The caller has no right to this; it is another node's."""


class NotImplementedYet(FlanneletteError):
    """Known, but not offered by this version or this store."""


class Unavailable(FlanneletteError):
    """The store, the firewall or another service is away. Retry with back-off."""
