"""`python -m lab.chaos`."""

import sys

try:
    from lab.chaos.main import main

    code = main(sys.argv[1:])
except KeyboardInterrupt:  # before there is anything to stop
    code = 130
sys.exit(code)
