"""`python -m pathgp`."""

import sys

from pathgp.cli import main

sys.exit(main())
