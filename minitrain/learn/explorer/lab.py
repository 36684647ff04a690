"""The lab: the explorer's page as files for any static host, with Python in the browser as its engine.

All that the page loads lies in its folder: Pyodide from npm, by the lock file beside `package.json`, wheels by the
hashes in `wheels.txt`, and the minitrain that runs here. Nothing is asked of another host, so that it works offline
once it is loaded.

The files of the page, which the server gives and the lab consists of.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from minitrain.errors import UsageError
from minitrain.files import TemporaryFolder, write_bytes, write_text
from minitrain.learn.isolation import PACKAGE, folder_of
from minitrain.learn.wheel import files_below, write_zip

ARCHIVE = "minitrain.zip"
"""The minitrain of the lab."""
_ENGINE = ("lab_worker.js", "lab_engine.js")
_PYODIDE = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "pyodide-lock.json", "python_stdlib.zip")
_TAGS = (
    *("--platform", "pyemscripten_2026_0_wasm32"),
    *("--python-version", "3.14", "--implementation", "cp", "--abi", "cp314"),
)
_NOT_IN_BROWSERS = (
    *("strategies/", "hw_configs/", "cli/", "training/", "learn/explorer/page/", "learn/explorer/lab_parts/"),
    *("machine/devices/", "machine/solver/", "machine/heterogeneous/"),
)


def build_lab(folder: Path) -> list[Path]:
    """Write the lab into a folder, which is made.

    Args:
        folder: where; files of an earlier lab are replaced.

    Returns:
        The files, in order of their names.

    Raises:
        UsageError: npm or pip is not there, or does not find what the lab is made of.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in PAGE:
        write_text(folder / name, [text_of("lab_transport.js" if name == "transport.js" else name)])
    for name in _ENGINE:
        write_text(folder / name, [text_of(name)])
    with TemporaryFolder("minitrain-lab-") as work:
        for part in ("package.json", "package-lock.json", "wheels.txt"):
            shutil.copy(Path(__file__).with_name("lab_parts") / part, work)
        _run("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", where=work)
        wheels = ("--no-deps", "--only-binary=:all:", "--require-hashes", "-r", "wheels.txt", "-d", "wheels")
        _run(sys.executable, "-m", "pip", "download", "-q", *_TAGS, *wheels, where=work)
        fetched = sorted((work / "wheels").glob("*.whl"))
        for path in (*(work / "node_modules" / "pyodide" / name for name in _PYODIDE), *fetched):
            write_bytes(folder / path.name, [path.read_bytes()])
    write_zip(folder / ARCHIVE, dict(_own_files()))
    write_text(folder / "lab.json", [json.dumps([ARCHIVE, *(path.name for path in fetched)])])
    return sorted(path for path in folder.iterdir() if path.is_file())


def _own_files() -> Iterator[tuple[str, bytes]]:
    """Yield the files of minitrain that a browser needs, by their names in the archive."""
    for name, data in files_below(PACKAGE, _NOT_IN_BROWSERS):
        yield f"minitrain/{name}", data
    for part in ("strategies", "hw_configs"):
        for name, data in files_below(folder_of(part)):
            yield f"minitrain/{part}/{name}", data


def _run(*command: str, where: Path) -> None:
    """Run a command that fetches something.

    Raises:
        UsageError: it is not there, or fails.
    """
    shown = " ".join(_short(command))
    try:
        subprocess.run(command, cwd=where, check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise UsageError(f"the lab is built with {Path(command[0]).name}, which is not installed; install it") from None
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip() or error.stdout.strip()).splitlines()[-1:]
        raise UsageError(
            f"`{shown}` failed: {' '.join(last)}; the lab needs the registries of npm and of Python"
        ) from None


def _short(command: Sequence[str]) -> list[str]:
    """Return the words of a command that tell it from others."""
    words = command[2:] if command[0] == sys.executable else command
    return list(words[:2])


PAGE = ("index.html", "explore.js", "transport.js", "timeline.js", "explore.css", "style.css")
"""Those that the server gives; `transport.js` says how questions reach what answers them."""
_MEDIA_TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css"}


def media_type(name: str) -> str:
    """Return the type of a file, as servers say it."""
    return _MEDIA_TYPES[name.rpartition(".")[2]]


def text_of(name: str) -> str:
    """Return a file of the page; the style and the timeline are those of all pages."""
    if name == "style.css":
        from minitrain.view.page import STYLE  # noqa: PLC0415  (Plotly's words, which take a moment)

        return STYLE
    if name == "timeline.js":
        from minitrain.view.timeline import timeline_script  # noqa: PLC0415

        return timeline_script()
    return Path(__file__).with_name("page").joinpath(name).read_text("utf-8")
