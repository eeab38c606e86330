"""`python -m pathgp.cli`."""

import sys

from pathgp.cli import main

sys.exit(main())
