"""`python -m holdfast.cli`: runs the command without an installed script."""

import sys

from holdfast.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
