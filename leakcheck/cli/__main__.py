"""`python -m leakcheck.cli`."""

import sys

from leakcheck.cli import main

sys.exit(main())
