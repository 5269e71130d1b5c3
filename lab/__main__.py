"""`python -m lab`."""

import sys

try:
    from lab.main import main

    code = main()
except KeyboardInterrupt:  # before there is anything to stop
    code = 130
sys.exit(code)
