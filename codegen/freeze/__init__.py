# SPDX-License-Identifier: Apache-2.0
"""Winners -> a package of frozen kernels: sources, cubins, manifest, wrappers and the table of its extension."""

from .winner import Winner, winner_of

__all__ = ["Winner", "winner_of"]
