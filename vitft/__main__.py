"""`python -m vitft` is `vitft`."""

import sys

from vitft.cli import main

if __name__ == "__main__":
    sys.exit(main())
