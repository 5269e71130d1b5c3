"""`python -m lab.chaos` runs a lab with faults."""

import sys

try:
    from lab.chaos.main import main

    code: int | str = main(sys.argv[1:])
except ModuleNotFoundError as error:
    code = f"chaos: {sys.executable} lacks {error.name}: use `make chaos`, or .venv/bin/python -m lab.chaos"
except KeyboardInterrupt:  # before there is anything to stop
    code = 130
sys.exit(code)
