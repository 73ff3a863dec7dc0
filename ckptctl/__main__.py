"""``python -m ckptctl``."""

from __future__ import annotations

import sys

from ckptctl.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
