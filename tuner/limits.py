# SPDX-License-Identifier: Apache-2.0
"""How far a run goes where the command line does not say."""

from __future__ import annotations

DEFAULT_TRIALS = 200
"""The study's total of finished configs."""
SPILL_LIMIT_BYTES = 256
"""Register spills (stores and loads together, a thread) above which a config is not run."""

TIME, ENERGY = OBJECTIVES = ("time", "energy")
"""What the finals are decided by: the time of a launch with a cold cache, or its joules in a repetition."""
