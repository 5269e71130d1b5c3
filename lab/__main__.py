"""`python -m lab` runs the lab."""

import sys

try:
    from lab.main import main

    code: int | str = main()
except ModuleNotFoundError as error:
    code = f"lab: {sys.executable} lacks {error.name}: use `make lab`, or .venv/bin/python -m lab"
except KeyboardInterrupt:  # before there is anything to stop
    code = 130
sys.exit(code)
