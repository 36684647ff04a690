"""The examples of README, docs and docstrings, run, and their outputs compared to the letter.

In a document,
- a python block with `>>>` is a doctest; one whose first line is `# name.py` is written to that file; any other is run,
  and a text block right after it is what it prints;
- a console block holds commands after `$ ` and what they print in 80 columns.
The blocks of a document share their names and a folder. After a change of outputs, `python tests/project/test_docs.py`
writes the new ones into the documents; read the diff.
"""

import contextlib
import doctest
import importlib
import io
import itertools
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from typer.testing import CliRunner, Result

import minitrain
from minitrain.cli import app, output

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
LONG = {"choose-a-layout", "mixed-clusters", "models", "teach", "train-a-real-model", "whole-runs"}
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class Document:
    """A document whose blocks are run one after the other in the working directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self.printed: str | None = None

    def refreshed(self) -> str:
        """Run every block and return the document with the outputs that came."""
        return FENCE.sub(self._block, self.path.read_text(encoding="utf-8"))

    def _block(self, fence: re.Match[str]) -> str:
        """Run a block and return it with its output."""
        kind, text = fence.groups()
        runs: dict[str, Callable[[str], str]] = {"python": self._python, "console": _console, "text": self._text}
        return f"```{kind}\n{runs[kind](text) if kind in runs else text}```"

    def _python(self, text: str) -> str:
        """Run Python code, or write it to the file that it names."""
        self.printed = None
        name = re.match(r"# (\w+\.py)\n", text)
        if name is not None:
            Path(name[1]).write_text(text, encoding="utf-8")
        elif ">>>" in text:
            self._doctest(text)
        else:
            with contextlib.redirect_stdout(io.StringIO()) as stdout:
                exec(compile(text, str(self.path), "exec"), self.names)
            self.printed = stdout.getvalue()
        return text

    def _doctest(self, text: str) -> None:
        """Run a doctest; its outputs are not rewritten."""
        test = doctest.DocTestParser().get_doctest(text, self.names, self.path.name, str(self.path), 0)
        report = io.StringIO()
        doctest.DocTestRunner(verbose=False, optionflags=FLAGS).run(test, out=report.write, clear_globs=False)
        self.names.update(test.globs)
        assert not report.getvalue(), report.getvalue()

    def _text(self, text: str) -> str:
        """Return what the code before printed."""
        printed, self.printed = self.printed, None
        return text if printed is None else printed


def _console(text: str) -> str:
    """Run the commands of a console block and return it with what they print."""
    commands = [line for line in text.splitlines() if line.startswith("$ ")]
    return "".join(f"{command}\n{_printed(command.removeprefix('$ '))}" for command in commands)


def _printed(command: str) -> str:
    """Return what a command prints, without blanks at the ends of lines and without empty lines around."""
    ours, _, others = command.partition(" | ")
    if ">" in ours or not ours.startswith("minitrain "):
        printed = _of_shell(command)
    else:
        result = _of_minitrain(ours)
        printed = _of_shell(others, result.stdout) if others else result.output
    text = "\n".join(line.rstrip() for line in printed.splitlines()).strip("\n")
    return f"{text}\n" if text else ""


def _of_minitrain(command: str) -> Result:
    """Run one of our commands here, which spares it the start of a process."""
    variables = {"COLUMNS": "80", "NO_COLOR": "1", "FORCE_COLOR": None, "GITHUB_ACTIONS": None}
    with patch.object(output, "PATIENCE_S", 3600.0):  # a busy machine changes nothing
        return CliRunner().invoke(app, shlex.split(command)[1:], env=variables)


def _of_shell(command: str, given: str = "") -> str:
    """Return what the shell's commands print."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path}
    done = subprocess.run(command, shell=True, check=True, capture_output=True, text=True, env=environment, input=given)
    return done.stdout


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=pytest.mark.ci if path.stem in LONG else ()) for path in DOCUMENTS],
    ids=[str(path.relative_to(ROOT)) for path in DOCUMENTS],
)
def test_examples_of_documents_print_what_they_say(path: Path, tmp_path: Path) -> None:
    with contextlib.chdir(tmp_path):
        assert Document(path).refreshed() == path.read_text(encoding="utf-8")


def _anchors(path: Path) -> set[str]:
    """Return what links to places within a document may say after `#`: its headings, as GitHub spells them."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} (.+?)\s*$", FENCE.sub("", path.read_text(encoding="utf-8")), re.MULTILINE):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        again = (f"{slug}-{number}" for number in itertools.count(1))
        found.add(slug if slug not in found else next(other for other in again if other not in found))
    return found


def _lost(path: Path, link: str) -> bool:
    """Return whether a link of a document leads to no file, or to no place in it."""
    name, _, anchor = link.partition("#")
    target = path.parent / name if name else path
    return not target.exists() or bool(anchor and target.suffix == ".md" and anchor not in _anchors(target))


def test_links_between_documents_lead_somewhere() -> None:
    found = [
        (path, link)
        for path in DOCUMENTS
        for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", FENCE.sub("", path.read_text(encoding="utf-8")))
    ]
    assert sum("#" in link for _, link in found) > 10
    assert [f"{path.relative_to(ROOT)}: {link}" for path, link in found if _lost(path, link)] == []


def test_headings_have_the_anchors_that_github_gives_them(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(
        "# A `b_c`: D-e, and [more](x.md)!\n```sh\n# no heading\n```\n## Twice\n## Twice\n", encoding="utf-8"
    )
    assert _anchors(path) == {"a-b_c-d-e-and-more", "twice", "twice-1"}
    assert [_lost(path, link) for link in ("#twice-1", "page.md#twice", "#thrice", "none.md", "")] == [0, 0, 1, 1, 0]


def _modules() -> list[str]:
    """Return the names of all modules of minitrain whose source holds an example."""
    files = {"minitrain": Path(minitrain.__file__).parent, "minitrain.strategies": ROOT / "strategies"}
    found = {
        ".".join([name, *path.relative_to(folder).with_suffix("").parts]).removesuffix(".__init__")
        for name, folder in files.items()
        for path in folder.rglob("*.py")
        if ">>>" in path.read_text(encoding="utf-8")
    }
    return sorted(found)


@pytest.mark.parametrize("name", _modules())
def test_examples_of_docstrings_print_what_they_say(name: str, tmp_path: Path) -> None:
    if name.startswith("minitrain.training."):
        pytest.importorskip("torch")
    with contextlib.chdir(tmp_path):
        outcome = doctest.testmod(importlib.import_module(name), optionflags=FLAGS)
    assert outcome.failed == 0


def test_the_readme_sets_up_with_two_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = [block for kind, block in FENCE.findall(text) if kind == "sh"]
    assert [command.count("\n") for command in commands] == [1, 1]
    assert "minitrain compare" in commands[0]
    assert "pytest" in commands[1]


if __name__ == "__main__":
    for document in DOCUMENTS:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            refreshed = Document(document).refreshed()
        document.write_text(refreshed, encoding="utf-8")
