"""Six lectures are made of the docs' sections, with pictures that are there and without code."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path


def test_lectures_have_the_docs_sections_pictures_and_sources(tmp_path: Path) -> None:
    docs = Path(__file__).parents[2] / "docs"
    spec = importlib.util.spec_from_file_location("slides", docs / "slides.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    paths = module.write_slides(tmp_path)
    assert len(paths) == 6
    for path, page in zip(paths, module.LECTURES.values(), strict=True):
        slides = path.read_text(encoding="utf-8").split("\n---\n")
        assert len(slides) >= 3
        headings = [line.lstrip("# ") for line in (docs / page).read_text().splitlines() if line.startswith("#")]
        for slide in slides:
            assert slide.strip().splitlines()[0].removeprefix("# ") in headings
            assert slide.strip().endswith(f"Source: docs/{page}")
            assert "```" not in slide
            assert len(slide.splitlines()) < 40
            assert all((tmp_path / name).is_file() for name in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", slide))
    assert len([*tmp_path.glob("*.png")]) >= 4
