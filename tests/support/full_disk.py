# SPDX-License-Identifier: Apache-2.0
"""A run whose disk fills up, and the next one with room again: in a mount namespace of its own, where a small
file system in memory may be mounted. Prints what it saw as JSON."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path

from tuning import Tuning


def main(folder: Path, good: int) -> None:
    """Tunes in ``folder`` until five trials are stored, fills the disk, and goes on when there is room."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(folder)], check=True)
    tuning = Tuning(folder, good)
    first = tuning.start()
    while len(tuning.rows()) < 5 and first.poll() is None:
        time.sleep(0.02)
    filler = folder / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as stream:
        while first.poll() is None:
            stream.write(bytes(4096))
    line = tuning.finish(first, code=1)
    filler.unlink()
    before = tuning.rows()
    second = tuning.run()
    after = tuning.rows()
    (study,) = tuning.studies()
    steps = [trial.params["STEP"] for trial in study.trials()]
    document = {
        "line": line,
        "kept": len(before),
        "lost": [number for number, row in before.items() if after.get(number) != row],
        "outcomes": second["outcomes"],
        "steps": sorted(steps),
        "best": second["best"]["config"],
        "damaged": [str(path) for path in tuning.damaged()],
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
