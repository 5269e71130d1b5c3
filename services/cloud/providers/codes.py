"""A provider's error codes: what follows from each, and what to set where.

They are matched by prefix, the longest first, for providers add parts to their codes: `Forbidden.RAM`.
"""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import ParamSpec, TypeVar

from flannelette.services.cloud.routes import CloudError, Failure

_Meaning = TypeVar("_Meaning")
_Arguments = ParamSpec("_Arguments")


class Codes:
    """`troubles`: prefixes of codes, separated by blanks, by what follows; `cures`: what to do, by prefix."""

    def __init__(self, troubles: Mapping[Failure, str], cures: Mapping[str, str]) -> None:
        self._troubles = {prefix: trouble for trouble, prefixes in troubles.items() for prefix in prefixes.split()}
        self._cures = cures

    def error(self, action: str, code: str, message: str, unknown: Failure = Failure.REFUSED) -> CloudError:
        """The error for what the provider has answered to an action. `unknown`: of a code that is in no table."""
        trouble = _longest(code, self._troubles, unknown)
        return CloudError(trouble, f"{action}: {code}", message.strip(), _longest(code, self._cures, ""))


def _longest(code: str, table: Mapping[str, _Meaning], otherwise: _Meaning) -> _Meaning:
    found = max((prefix for prefix in table if code.startswith(prefix)), key=len, default=None)
    return otherwise if found is None else table[found]


def understood(call: Callable[_Arguments, _Meaning]) -> Callable[_Arguments, _Meaning]:
    """A call whose answer, if it is not as documented, fails this call and not the process."""

    @wraps(call)
    def made(*arguments: _Arguments.args, **named: _Arguments.kwargs) -> _Meaning:
        try:
            return call(*arguments, **named)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            what = f"{type(error).__name__}: {error}"
            raise CloudError(Failure.WAIT, "unexpected answer", what, "the provider's API has changed") from error

    return made
