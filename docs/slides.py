"""Write slides for six lectures, made of the docs' own sections and pictures: `python docs/slides.py FOLDER`.

A lecture is a page of Markdown whose slides are parted by `---`, as Marp, pandoc and reveal.js read it. Each section of
the docs' page is a slide: its heading, its first paragraph, its first picture or table, and where it comes from. Code
is left to the page.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

DOCS = Path(__file__).parent
LECTURES = {
    "1-data-parallel": "families/data-parallel.md",
    "2-pipelines": "families/pipelines.md",
    "3-zero-bubble": "families/zero-bubble.md",
    "4-combined": "families/combined.md",
    "5-traces": "traces.md",
    "6-gaps": "diff.md",
}
_CODE = re.compile(r"^```.*?^```$\n?", re.MULTILINE | re.DOTALL)
_PICTURE = re.compile(r"!\[([^\]]*)\]\(([^)]+)\)")
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\([^)]+\)")
_MOST_ROWS = 12


def lecture(page: str) -> tuple[str, list[Path]]:
    """Return the slides that a page of the docs makes, and the pictures on them."""
    text = _CODE.sub("", (DOCS / page).read_text(encoding="utf-8"))
    slides, pictures = [], []
    for section in re.split(r"^(?=#{1,3} )", text, flags=re.MULTILINE):
        parts = [part.strip() for part in section.split("\n\n") if part.strip()]
        shown = [*_shown(parts[1:])]
        if not shown:
            continue
        pictures += [(DOCS / page).parent / name for part in shown for _, name in _PICTURE.findall(part)]
        body = _PICTURE.sub(lambda found: f"![{found[1]}]({Path(found[2]).name})", "\n\n".join(shown))
        heading = f"# {parts[0].lstrip('# ')}"
        words = _LINK.sub(lambda found: found[1], body)
        slides.append(f"{heading}\n\n{words}\n\nSource: docs/{page}\n")
    return "\n---\n\n".join(slides), pictures


def _shown(parts: list[str]) -> Iterator[str]:
    """Yield a section's first paragraph, its first picture, and its first table, cut to what a slide holds."""
    kinds = {"!": "picture", "|": "table"}
    seen: set[str] = set()
    for part in parts:
        kind = kinds.get(part[0], "words")
        if kind not in seen and not part.startswith(("#", "<", "-")):
            seen.add(kind)
            yield "\n".join(part.splitlines()[:_MOST_ROWS])


def write_slides(folder: Path) -> list[Path]:
    """Write all lectures with their pictures, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, page in LECTURES.items():
        text, pictures = lecture(page)
        for picture in pictures:
            shutil.copy(picture, folder / picture.name)
        paths.append(folder / f"{name}.md")
        paths[-1].write_text(text, encoding="utf-8")
    return paths


if __name__ == "__main__":
    print("\n".join(map(str, write_slides(Path(sys.argv[1])))))
