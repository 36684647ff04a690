"""Keep the errors of all validated runs in `stored.json`: `python -m minitrain.evidence.stored`.

The file holds the mean error of each table, and the error of each validated run by platform, device, kind of model,
axes and ranks; runs say by it how sure their times are. With --check the errors are compared with the file instead of
written, and a mean that is worse by more than half a point fails.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from minitrain.evidence.errors_by_table import RowResult
from minitrain.evidence.similar_runs import axes_of, family_of, stored_means
from minitrain.evidence.validate import Validation, validate
from minitrain.files import write_text
from minitrain.machine.platforms import COMPONENTS

_MOST_WORSE = 0.005


def stored(done: Validation) -> dict[str, Any]:
    """Return what is stored of a validation."""
    return {
        "means": {
            f"{errors.table} {errors.group}".strip(): round(errors.errors.mean, 4)
            for errors in done.tables
            if errors.of == "time"
        },
        "errors": sorted(_error(run, run.error) for run in done.results if run.error is not None and run.kind),
    }


def _error(run: RowResult, error: float) -> list[Any]:
    """Return what is stored of a run, as `StoredError` has it."""
    platform, device = run.platform or COMPONENTS.name, family_of(run.device)
    return [run.table, platform, device, run.kind, axes_of(run.axes), run.world_size, round(error, 3)]


def worse(found: Mapping[str, float], before: Mapping[str, float]) -> list[str]:
    """Return a line for each mean that is missing, or larger by more than half a point.

    >>> worse({"c2": 0.03}, {"c2": 0.017, "e2": 0.02})
    ['c2: 3.0 %, was 1.7 %', 'e2: missing, was 2.0 %']
    """
    lines = []
    for name, mean in before.items():
        new = found.get(name)
        if new is None:
            lines.append(f"{name}: missing, was {100 * mean:.1f} %")
        elif new > mean + _MOST_WORSE:
            lines.append(f"{name}: {100 * new:.1f} %, was {100 * mean:.1f} %")
    return lines


def main(arguments: Sequence[str]) -> int:
    """Write `stored.json` beside this file, or compare with it; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m minitrain.evidence.stored", description=main.__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the file")
    checking = parser.parse_args(arguments).check
    done = validate(jobs=None)
    found = stored(done)
    if checking:
        lines = worse(found["means"], stored_means())
        print("\n".join(lines) or "no mean is worse")
        return 1 if lines else 0
    text = json.dumps(found, separators=(",", ":")).replace("],[", "],\n[").replace(',"errors"', ',\n"errors"')
    write_text(Path(__file__).with_name("stored.json"), [text + "\n"])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
