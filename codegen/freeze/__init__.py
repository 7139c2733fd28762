# SPDX-License-Identifier: Apache-2.0
"""Winners -> a package of frozen kernels: sources, cubins, manifest, wrappers and the table of its
extension.
"""

from .bundle import Bundle, read_bundle, write_bundle
from .faster import clearly_faster, is_still_legal
from .manifest import load_winners
from .merge import Change, merge, split_stale
from .package import GENERATED, FreezeReport, freeze
from .portable import with_ptx
from .wheel import write_wheel
from .winner import Winner, winner_of

__all__ = [
    "GENERATED",
    "Bundle",
    "Change",
    "FreezeReport",
    "Winner",
    "clearly_faster",
    "freeze",
    "is_still_legal",
    "load_winners",
    "merge",
    "read_bundle",
    "split_stale",
    "winner_of",
    "with_ptx",
    "write_bundle",
    "write_wheel",
]
