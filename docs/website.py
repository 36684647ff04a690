"""Build the docs as a site: `python docs/website.py FOLDER [--no-lab]`.

The pages are README.md, CHANGES.md and the Markdown of this folder as it is. On the way into Sphinx, links to other
files of the repository become links to copies of them, a light picture gets the dark one beside it, and below each
strategy that is shown whole stands the lab with it. The reference is made of the docstrings of what `minitrain`
exports. The site of each version lies in a folder of its own, FOLDER/VERSION, beside those that were built before, and
lists all of them. Warnings are errors, and every link within the site is followed.
"""

from __future__ import annotations

import html
import inspect
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib.metadata import version
from pathlib import Path
from urllib.parse import quote, unquote, urldefrag, urlencode

import minitrain as mt
from minitrain.errors import UsageError
from minitrain.learn.explorer.lab import build_lab

ROOT = Path(__file__).resolve().parents[1]
TOPICS = {
    "Begin": ("docs/write-your-own-strategy", "docs/strict", "docs/traces", "docs/explore", "docs/learn", "docs/card"),
    "How strategies work": tuple(
        f"docs/families/{name}" for name in ("data-parallel", "pipelines", "zero-bubble", "combined")
    ),
    "Real models": ("docs/train-a-real-model", "docs/models", "docs/choose-a-layout", "docs/sweeps", "docs/whole-runs"),
    "Machines": ("docs/what-if", "docs/mixed-clusters", "docs/platform", "docs/devices", "docs/heterogeneous"),
    "Real runs": ("docs/train", "docs/diff", "docs/accuracy"),
    "Reference": (
        "docs/reference",
        "docs/cli",
        "docs/event-log",
        "docs/teach",
        "docs/statements",
        "hw_configs/SOURCES",
        "CHANGES",
    ),
    "Inside": ("docs/architecture", "docs/design", "docs/performance", "docs/specifications"),
}
"""The pages in the sidebar, by topic."""
_LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)\s#]+)(#[^)\s]*)?(?=\))")
_LIGHT = re.compile(r"^!\[([^\]]*)\]\(([\w/-]+)-light\.png\)$", re.MULTILINE)
_PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_WHOLE = re.compile(r"^async def \w+\(model\b.*?^    return model$", re.MULTILINE | re.DOTALL)
_SMALL = {"strategy": "own", "world_size": 4, "num_layers": 8, "global_batch_size": 16}
_VERSIONS = """
addEventListener('DOMContentLoaded', async () => {
  const place = document.querySelector('.sidebar-brand'), here = document.documentElement.dataset.content_root || './';
  const found = await fetch(here + '../versions.json').then(one => one.json()).catch(() => []);
  if (found.length < 2 || !place) return;
  const select = document.createElement('select');
  select.ariaLabel = 'version of the docs';
  for (const name of found) select.append(new Option(name, name, false, location.pathname.includes(`/${name}/`)));
  select.onchange = () => location.assign(here + '../' + select.value + '/');
  place.after(select);
});
"""
_STYLE = """
.lab iframe { width: 100%; height: 640px; border: 1px solid var(--color-background-border); }
.lab { margin: 0 0 1.5em; }
.lab summary { cursor: pointer; color: var(--color-link); }
.sidebar-drawer select { margin: 0 var(--sidebar-item-spacing-horizontal); }
table.docutils { display: block; overflow-x: auto; }
"""


def sources(folder: Path, *, lab: bool) -> None:
    """Write what Sphinx reads: all pages, their pictures, and copies of the files that they link to."""
    pages = [ROOT / "README.md", ROOT / "CHANGES.md", ROOT / "hw_configs" / "SOURCES.md", *ROOT.glob("docs/**/*.md")]
    for path in pages:
        written = folder / path.relative_to(ROOT)
        written.parent.mkdir(parents=True, exist_ok=True)
        text = _page(path, set(pages), folder)
        if lab:
            text = _with_lab(text, _up(path))
        written.write_text(text, encoding="utf-8")
    (folder / "README.md").rename(folder / "index.md")
    with (folder / "index.md").open("a", encoding="utf-8") as index:
        for topic, names in TOPICS.items():
            index.write(f"\n```{{toctree}}\n:caption: {topic}\n:hidden:\n\n" + "\n".join(names) + "\n```\n")
    (folder / "docs" / "reference.md").write_text("\n".join(_reference()), encoding="utf-8")
    (folder / "static").mkdir()
    (folder / "static" / "versions.js").write_text(_VERSIONS, encoding="utf-8")
    (folder / "static" / "site.css").write_text(_STYLE, encoding="utf-8")


def _page(path: Path, pages: set[Path], folder: Path) -> str:
    """Return a page with links that hold in the site; pictures are copied, and other files as text."""

    def target(found: re.Match[str]) -> str:
        aim = (path.parent / unquote(found[1])).resolve()
        if aim == ROOT / "README.md":
            return f"{_up(path)}index.md{found[2] or ''}"
        if aim in pages or not aim.is_file():
            return found[0]
        name = aim.relative_to(ROOT)
        is_picture = aim.suffix in (".png", ".svg")
        copied = folder / name if is_picture else folder / "files" / f"{name}.txt"
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(aim, copied)
        return found[0] if is_picture else f"path:{_up(path)}files/{name}.txt"

    text = path.read_text(encoding="utf-8")
    for light in _LIGHT.finditer(text):
        dark = path.parent / f"{light[2]}-dark.png"
        copied = folder / dark.relative_to(ROOT)
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(dark, copied)
    return _LIGHT.sub(_in_both_modes, _LINK.sub(target, text))


def _in_both_modes(light: re.Match[str]) -> str:
    """Return a picture with its dark one, each of which is seen in its mode."""
    about, name = light.groups()
    return "\n\n".join(
        f"```{{image}} {name}-{mode}.png\n:alt: {about}\n:class: only-{mode}\n```" for mode in ("light", "dark")
    )


def _up(path: Path) -> str:
    """Return the way from a page to the root."""
    return "../" * (len(path.relative_to(ROOT).parts) - 1)


def _with_lab(text: str, up: str) -> str:
    """Return a page with the lab below each strategy that is shown whole."""
    return _PYTHON.sub(lambda found: found[0] + (_frame(found[1], up) if _WHOLE.search(found[1]) else ""), text)


def _frame(source: str, up: str) -> str:
    """Return the lab with a strategy."""
    address = f"{up}lab/index.html#{urlencode({**_SMALL, 'source': source}, quote_via=quote)}"
    frame = f'<iframe loading="lazy" title="the lab" src="{html.escape(address)}"></iframe>'
    return f'\n\n<details class="lab"><summary>change it and run it here: the lab</summary>{frame}</details>\n'


def _reference() -> Iterator[str]:
    """Yield the lines of the reference: what `minitrain` exports, by kind."""
    kinds: dict[str, list[str]] = {"Functions": [], "Classes": [], "Errors": []}
    for name in sorted(mt.__all__):
        one = getattr(mt, name)
        if isinstance(one, type):
            is_error = issubclass(one, Exception)
            kinds["Errors" if is_error else "Classes"].append(f"autoclass:: minitrain.{name}")
        elif inspect.isfunction(one):
            kinds["Functions"].append(f"autofunction:: minitrain.{name}")
    kinds["Parameters of runs"] = ["autoclass:: minitrain.run.parameters.RunParameters"]
    kinds["Fields of models"] = ["autoclass:: minitrain.workloads.architecture.Architecture"]
    yield "# Reference\n\nWhat `import minitrain as mt` gives, from the docstrings."
    for title, directives in kinds.items():
        yield f"\n## {title}\n"
        for directive in directives:
            yield f"```{{eval-rst}}\n.. {directive}\n" + ("   :members:\n" if "class" in directive else "") + "```\n"


def build(folder: Path, *, lab: bool) -> Path:
    """Build the site of this version, and return its folder.

    Raises:
        SystemExit: Sphinx warns, or a link leads nowhere.
    """
    from sphinx.application import Sphinx  # noqa: PLC0415  (of the extra `docs`)

    place = folder / version("minitrain")
    with tempfile.TemporaryDirectory() as temporary:
        source, trees = Path(temporary, "source"), Path(temporary, "trees")
        sources(source, lab=lab)
        settings = {
            "project": "minitrain",
            "release": version("minitrain"),
            "html_title": f"minitrain {version('minitrain')}",
            "extensions": "myst_parser,sphinx.ext.autodoc,sphinx.ext.napoleon",
            "html_theme": "furo",
            "html_static_path": "static",
            "html_css_files": "site.css",
            "html_js_files": "versions.js",
            "html_copy_source": False,
            "exclude_patterns": "files",
            "myst_heading_anchors": 4,
            "default_role": "literal",
            "autodoc_member_order": "bysource",
            "python_maximum_signature_line_length": 88,
            "suppress_warnings": "myst.header,misc.highlighting_failure",
        }
        shutil.rmtree(place, ignore_errors=True)
        app = Sphinx(
            source, None, place, trees, "html", confoverrides=settings, warningiserror=True, status=None, freshenv=True
        )
        app.build()
        if app.statuscode:
            raise SystemExit(app.statuscode)
        if (source / "files").is_dir():
            shutil.copytree(source / "files", place / "files", dirs_exist_ok=True)
    if lab:
        build_lab(place / "lab")
    list_versions(folder)
    lost = list(broken(place))
    if lost:
        raise SystemExit("links that lead nowhere:\n" + "\n".join(lost))
    return place


def list_versions(folder: Path) -> None:
    """Write the list of versions that pages offer, the newest first, and a first page that leads to the newest."""
    found = (path.parent.name for path in folder.glob("*/index.html"))
    names = sorted(found, key=lambda name: [int(part) for part in re.findall(r"\d+", name)], reverse=True)
    (folder / "versions.json").write_text(json.dumps(names), encoding="utf-8")
    first = f'<meta http-equiv="refresh" content="0; url={names[0]}/index.html" />'
    (folder / "index.html").write_text(f"<!doctype html><title>minitrain</title>{first}\n", encoding="utf-8")


class _Links(HTMLParser):
    """What a page links to, and the places in it that links may name."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, _tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the addresses and the names of an element."""
        for name, value in attrs:
            if value and name in ("href", "src"):
                self.targets.append(value)
            elif value and name in ("id", "name"):
                self.places.add(value)


def broken(site: Path) -> Iterator[str]:
    """Yield the links within a site that lead nowhere, with their pages."""
    pages = {path: _Links(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    for page, links in pages.items():
        for target in links.targets:
            if re.match(r"\w+:|//", target):
                continue
            address, fragment = urldefrag(target)
            aim = (page.parent / unquote(address.partition("?")[0])).resolve() if address else page
            is_there = aim.is_file() or (aim / "index.html").is_file()
            is_named = not fragment or aim not in pages or "lab" in aim.parts or unquote(fragment) in pages[aim].places
            if not (is_there and is_named):
                yield f"{page.relative_to(site)}: {target[:120]}"


if __name__ == "__main__":
    try:
        print(f"wrote {build(Path(sys.argv[1]).resolve(), lab='--no-lab' not in sys.argv)}")
    except UsageError as fault:
        raise SystemExit(f"{fault}; without it: --no-lab") from None
