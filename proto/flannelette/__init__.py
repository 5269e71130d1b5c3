"""Flannelette: the code of its services below `flannelette.services`, beside the generated code of their protocols."""

import os
import sys
from contextlib import suppress
from importlib.util import find_spec
from types import ModuleType
from typing import Final

_IN_PYTHON: Final = "google.protobuf.internal.python_message"

# Each module of messages imports protobuf's implementation in Python too, which takes 1 MB of every process and is
# not used where there is the one in C (ADR 22). Done here, because this is imported before any module of messages.
with suppress(ModuleNotFoundError):
    if find_spec("google._upb._message") and "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION" not in os.environ:
        sys.modules.setdefault(_IN_PYTHON, ModuleType(_IN_PYTHON))
