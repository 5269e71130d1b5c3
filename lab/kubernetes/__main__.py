"""`python -m lab.kubernetes` runs a Kubernetes in namespaces."""

import sys

try:
    from lab.kubernetes.main import main

    code = main(sys.argv[1:])
except KeyboardInterrupt:  # before there is anything to stop
    code = 130
sys.exit(code)
