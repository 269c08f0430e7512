"""``python -m octavo.cli``: the same as ``octavo``."""

import sys

from octavo.cli import main

sys.exit(main())
