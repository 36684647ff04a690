"""The table of commands says of each what its module says, and the help reads nothing else."""

from __future__ import annotations

import subprocess
import sys

import pytest

from minitrain.cli.application import COMMANDS, loaded

_STARTED = """
import sys
from minitrain.cli import app
try:
    app({arguments!r})
except SystemExit:
    print(sorted(name for name in sys.modules if name.startswith("minitrain.r") or name in ("numpy", "jax")))
"""


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_begins_as_the_help_of_the_command_does(name: str) -> None:
    command = loaded(name)
    assert command.name == name
    assert " ".join(command.help.partition("\n\n")[0].split()) == COMMANDS[name][1]


def test_the_help_begins_with_what_most_people_want() -> None:
    assert list(COMMANDS)[:3] == ["compare", "run", "strategies"]


@pytest.mark.parametrize("arguments", [["--help"], ["learn", "list"]], ids=" ".join)
def test_what_is_asked_for_at_the_beginning_loads_no_simulator(arguments: list[str]) -> None:
    found = subprocess.run(
        [sys.executable, "-c", _STARTED.format(arguments=arguments)], capture_output=True, text=True, check=True
    )
    assert found.stdout.splitlines()[-1] in ("[]", "['minitrain.run', 'minitrain.run.progress']")
