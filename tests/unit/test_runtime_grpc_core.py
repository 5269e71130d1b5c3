"""gRPC's core is told how to read its sockets before it is imported, in words that it knows."""

import os
import subprocess
import sys

import pytest

_SHOW = "import os, sys; print(os.environ.get('GRPC_EXPERIMENTS'), 'grpc' in sys.modules)"


def run(code: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    inherited = {name: value for name, value in os.environ.items() if name != "GRPC_EXPERIMENTS"}
    return subprocess.run(
        [sys.executable, "-c", code], env=inherited | environment, capture_output=True, text=True, check=True
    )


@pytest.mark.parametrize("service", ["lease", "dataplane"])
def test_a_service_says_so_before_it_imports_grpc(service: str) -> None:
    done = run(f"import services.{service}; {_SHOW}")
    assert done.stdout == "-event_engine_client,-event_engine_listener False\n"


def test_what_the_environment_says_stands() -> None:
    assert run(f"import services.lease; {_SHOW}", GRPC_EXPERIMENTS="").stdout == " False\n"


def test_the_core_knows_every_word_of_it() -> None:
    code = "import services.dataplane, asyncio, grpc.aio\nasync def main(): await grpc.aio.server().stop(0)\n"
    assert run(f"{code}asyncio.run(main())").stderr == ""
    assert "Unknown experiment" in run(f"{code}asyncio.run(main())", GRPC_EXPERIMENTS="-no_such_thing").stderr


def test_a_version_that_nobody_has_looked_at_is_told_nothing() -> None:
    code = "from services.runtime import grpc_core; grpc_core._minor_version = lambda: 99; grpc_core.configure()"
    assert run(f"{code}; {_SHOW}").stdout == "None False\n"
