"""``python -m polyhead`` is ``polyhead``."""

import sys

from polyhead.cli import main

sys.exit(main())
