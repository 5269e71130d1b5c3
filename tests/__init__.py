"""The tests and what they stand on; README.md says where each kind of behaviour is tested."""

from pkgutil import iter_modules

import pytest

# An assertion of a module that tests share tells what it compared, as those of the tests do.
pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in iter_modules(__path__)))
