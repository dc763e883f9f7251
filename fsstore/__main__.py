"""`python -m fsstore`: the command line."""

import sys

from fsstore.command.main import main

if __name__ == "__main__":
    sys.exit(main())
