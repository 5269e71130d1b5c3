"""`python -m lab.simulate`."""

import sys

try:
    from lab.simulate.main import main

    code = main(sys.argv[1:])
except KeyboardInterrupt:
    code = 130
sys.exit(code)
