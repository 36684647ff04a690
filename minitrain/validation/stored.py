"""Write what runs say of their sureness, and what a check compares with: `python -m minitrain.validation.stored`.

`stored.json` holds the mean error of each table, and the error of each validated run by device, kind of model and
ranks.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from minitrain.files import write_text
from minitrain.validation.nearest import family_of
from minitrain.validation.validate import Validation, validate

_GATED = ("llama", "internlm", "mistral", "grok")  # what begins the names of models with a gated MLP
_TABLES_OF_LAYERS = ("c2", "e2")  # no runs


def stored(done: Validation) -> dict[str, Any]:
    """Return what is stored of a validation."""
    runs = [result for result in done.results if result.error is not None and result.table not in _TABLES_OF_LAYERS]
    return {
        "means": {
            f"{errors.table} {errors.group}".strip(): round(errors.errors.mean, 4)
            for errors in done.tables
            if errors.of == "time"
        },
        "errors": [
            [run.table, family_of(run.device), _is_gated(run.model), run.world_size, round(run.error or 0, 3)]
            for run in runs
        ],
    }


def _is_gated(model: str) -> bool:
    """Return whether the MLP of a model of that name is gated."""
    return model.lower().startswith(_GATED)


def main() -> None:
    """Write `stored.json` beside this file."""
    text = json.dumps(stored(validate(jobs=None)), indent=None, separators=(",", ":"))
    write_text(Path(__file__).with_name("stored.json"), [text.replace('],["', '],\n["') + "\n"])


if __name__ == "__main__":
    main()
