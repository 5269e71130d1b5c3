"""libnftables, the library of nft(8): commands in its language go in, JSON comes out (libnftables-json(5)).

Bound here in a few lines: what PyPI has is a copy of nft's own module under the GPL.
"""

import ctypes
import json
from typing import Any, Final

from flannelette.services.core.errors import Unavailable

_NAME: Final = "libnftables.so.1"
_JSON: Final = 1 << 4  # NFT_CTX_OUTPUT_... of nftables/libnftables.h
_CURES: Final = {
    "Operation not permitted": "run the service as root with CAP_NET_ADMIN",
    "Protocol not supported": "load nftables into the kernel: `modprobe nf_tables`",
    "No such file or directory": "the kernel lacks a module: `modprobe -a nft_chain_nat nft_masq nft_counter`",
}


class Nftables:
    """nft without a process. Every call raises Unavailable, with the cause and its cure."""

    def __init__(self) -> None:
        self._library = _load()
        self._context = self._library.nft_ctx_new(0)
        self._library.nft_ctx_buffer_output(self._context)
        self._library.nft_ctx_buffer_error(self._context)
        self._library.nft_ctx_output_set_flags(self._context, _JSON)

    def run(self, commands: list[str]) -> None:
        """Carries out all of them or none: they are one transaction."""
        self._run("\n".join(commands))

    def listing(self, command: str) -> list[dict[str, Any]]:
        """The objects that a `list ...` command finds."""
        objects: list[dict[str, Any]] = json.loads(self._run(command) or '{"nftables": []}')["nftables"]
        return objects

    def close(self) -> None:
        """Frees the library's context, after which no command can be run."""
        self._library.nft_ctx_free(self._context)

    def _run(self, text: str) -> str:
        if self._library.nft_run_cmd_from_buffer(self._context, text.encode()):
            error = str(self._library.nft_ctx_get_error_buffer(self._context).decode(errors="replace"))
            first = error.strip().partition("\n")[0].removeprefix("Error: ")
            cure = next((cure for sign, cure in _CURES.items() if sign in error), "see the kernel's log (dmesg)")
            raise Unavailable(f"nftables: {first}; {cure}")
        return str(self._library.nft_ctx_get_output_buffer(self._context).decode())


def _load() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(_NAME)
    except OSError as error:
        raise Unavailable(f"nftables needs {_NAME} ({error}): apt-get install libnftables1") from None
    pointer, text = ctypes.c_void_p, ctypes.c_char_p
    for name, result, arguments in (
        ("nft_ctx_new", pointer, [ctypes.c_uint32]),
        ("nft_ctx_free", None, [pointer]),
        ("nft_ctx_buffer_output", ctypes.c_int, [pointer]),
        ("nft_ctx_buffer_error", ctypes.c_int, [pointer]),
        ("nft_ctx_output_set_flags", None, [pointer, ctypes.c_uint]),
        ("nft_run_cmd_from_buffer", ctypes.c_int, [pointer, text]),
        ("nft_ctx_get_output_buffer", text, [pointer]),
        ("nft_ctx_get_error_buffer", text, [pointer]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
