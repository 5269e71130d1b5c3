"""`python -m lab`."""

import sys

from lab.main import main

sys.exit(main())
