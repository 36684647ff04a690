"""`mt.explore()` serves a page that a notebook shows, and leaves no process; `minitrain explore` says where it is."""

from __future__ import annotations

import urllib.request
from typing import Any

import pytest
from typer.testing import CliRunner

import minitrain as mt
from minitrain.cli import app


@pytest.mark.ci
def test_a_notebook_shows_the_page_until_it_is_closed() -> None:
    pytest.importorskip("starlette", reason="starlette is not installed")
    shown = mt.explore(strategy="zero3", world_size=8, options={"recompute": "full"})
    assert shown.address.startswith("http://127.0.0.1:")
    assert shown.address.endswith("&strategy=zero3&world_size=8&o.recompute=full")
    assert "&amp;strategy=zero3" in shown._repr_html_()
    with urllib.request.urlopen(shown.address.partition("#")[0]) as page:
        assert "frame-ancestors http://localhost:*" in page.headers["content-security-policy"]
    shown.close()
    assert shown._process.returncode == 0


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minitrain.errors.find_spec", lambda name: None if name == "starlette" else object())
    with pytest.raises(mt.UsageError, match=r"needs starlette, not installed here; pip install 'minitrain\[explore\]'"):
        mt.explore()


def test_the_command_prints_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    server = pytest.importorskip("minitrain.learn.explorer.server", reason="starlette is not installed")
    asked: dict[str, Any] = {}
    monkeypatch.setattr(
        server, "serve", lambda port, say, opens: (asked.update(port=port, opens=opens), say("http://x"))
    )
    result = CliRunner().invoke(app, ["explore", "--no-open", "--port", "8000"])
    assert result.stdout == "http://x\n"
    assert asked == {"port": 8000, "opens": False}
