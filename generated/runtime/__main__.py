# SPDX-License-Identifier: Apache-2.0
"""`python -m <package>.runtime`: see `command`."""

import sys

from .command import main

sys.exit(main())
