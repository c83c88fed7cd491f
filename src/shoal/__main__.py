"""Run the command line as ``python -m shoal``."""

from __future__ import annotations

import sys

from shoal.cli._app import main

if __name__ == "__main__":
    sys.exit(main())
