"""`python -m smalti`: the `smalti` command where it is not on the path."""

import sys

from smalti.cli import main

sys.exit(main())
