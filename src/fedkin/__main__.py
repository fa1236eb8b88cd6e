"""``python -m fedkin``."""

import sys

from fedkin.cli import main

sys.exit(main())
