"""The table of commands says of each what its module says, and the help reads nothing else."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from minitrain.cli.application import COMMANDS, loaded
from minitrain.run.parameters import DEFAULTS, OPTIONS

DOCS = Path(__file__).parents[2] / "docs"

_STARTED = """
import sys
from minitrain.cli import app
try:
    app({arguments!r})
except SystemExit:
    print(sorted(name for name in sys.modules if name.startswith("minitrain.r") or name in ("numpy", "jax")))
"""


@pytest.mark.few(1)
@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_begins_as_the_help_of_the_command_does(name: str) -> None:
    command = loaded(name)
    assert command.name == name
    assert " ".join(command.help.partition("\n\n")[0].split()) == COMMANDS[name][1]


def test_the_help_begins_with_what_most_people_want() -> None:
    assert list(COMMANDS)[:3] == ["compare", "run", "strategies"]


@pytest.mark.few(1)
@pytest.mark.parametrize("arguments", [["--help"], ["learn", "list"]], ids=" ".join)
def test_what_is_asked_for_at_the_beginning_loads_no_simulator(arguments: list[str]) -> None:
    found = subprocess.run(
        [sys.executable, "-c", _STARTED.format(arguments=arguments)], capture_output=True, text=True, check=True
    )
    loaded = set(ast.literal_eval(found.stdout.splitlines()[-1]))
    assert loaded <= {"minitrain.run", "minitrain.run.above", "minitrain.run.rank_tasks"}


def _leaves(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Yield a command, or all of a group, by name."""
    inner = getattr(command, "commands", {})
    yield from ((f"{name} {each}", inner[each]) for each in inner) if inner else [(name, command)]


LEAVES = dict(leaf for name in COMMANDS for leaf in _leaves(name, loaded(name)))


@pytest.mark.parametrize("name", LEAVES)
def test_every_argument_and_option_says_what_it_means_and_every_command_has_debug(name: str) -> None:
    listed = [each for each in LEAVES[name].params if not each.hidden]
    assert [each.name for each in listed if each.name != "help" and not each.help] == []
    assert "debug" in [each.name for each in listed]


@pytest.mark.parametrize("name", OPTIONS)
def test_a_parameter_has_its_flags_in_each_command_that_has_it(name: str) -> None:
    option, found = OPTIONS[name], []
    for command in option.commands.split():
        (given,) = [each for each in LEAVES[command].params if each.name == name]
        assert "/".join(given.opts) == "/".join(option.flags).removesuffix("/--no-fold")
        found.append(given)
    assert found
    assert all(each.default in (None, False) for each in found) or name in {"world_size", "global_batch_size", "strict"}
    shown = {each.show_default for each in found if isinstance(each.show_default, str)}
    assert shown <= {option.shown or str(DEFAULTS[name])}


@pytest.mark.ci
@pytest.mark.parametrize("name", ["run", "sweep", "learn grade"])
def test_help_fits_into_a_narrow_terminal_and_can_be_read_out(name: str) -> None:
    program = "from minitrain.cli import main; main()"
    command = [sys.executable, "-c", program, *name.split(), "--help"]
    env = {"COLUMNS": "60", "PYTHONPATH": str(DOCS.parent), "PATH": ""}
    text = subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout
    assert max(map(len, text.splitlines())) <= 60
    assert not re.search(r"[│╭─]|<=|\[default: \(|<str>", text)
    for each in LEAVES[name].params:
        assert each.param_type_name != "option" or each.hidden or each.opts[-1] in text


def test_the_page_of_the_command_line_says_what_the_help_says() -> None:
    spec = importlib.util.spec_from_file_location("page_of_commands", DOCS / "cli.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = module.PAGE.read_text(encoding="utf-8")
    assert module.refreshed(text) == text, "run python docs/cli.py"
    assert "--global-batch-size" in text
