"""``python -m octavo``: the command line, where the console script is not on the path."""

import sys

from octavo.cli import main

sys.exit(main())
