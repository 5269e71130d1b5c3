"""`python -m lab.simulate` runs a simulation."""

import sys

try:
    from lab.simulate.main import main

    code: int | str = main(sys.argv[1:])
except ModuleNotFoundError as error:
    code = f"simulate: {sys.executable} lacks {error.name}: use `make simulate`, or .venv/bin/python -m lab.simulate"
except KeyboardInterrupt:
    code = 130
sys.exit(code)
