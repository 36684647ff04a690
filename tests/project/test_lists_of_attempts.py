"""What was tried, by class, stands in docs/strict.md as the tests' own lists say.

`python -m tests.project.test_lists_of_attempts` writes it there, between `<!-- attempts -->` and `<!-- end -->`.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.engine.test_waiting_programs import PROGRAMS
from tests.learn.exercises.test_cheats import FAILING, TAMPERING
from tests.learn.test_isolation import ESCAPES
from tests.project.test_mutated_files import KINDS, VERDICTS

PAGE = Path(__file__).parents[2] / "docs" / "strict.md"
_LISTS = re.compile(r"(<!-- attempts -->\n).*?(<!-- end -->)", re.DOTALL)


def attempts() -> Iterator[tuple[str, str, int, str]]:
    """Yield list, class, how many there are, and what becomes of them."""
    for kind, cheats in FAILING.items():
        checks = words(check for _, _, each, _ in cheats.values() for check in each.split("|"))
        yield "cheat", kind, len(cheats), f"fails {checks}"
    for kind, tampering in TAMPERING.items():
        yield (
            "cheat",
            kind,
            len(tampering),
            words("no points" if verdict else "the same grade" for _, verdict in tampering.values()),
        )
    for kind, (stops, escapes) in ESCAPES.items():
        yield "escape", kind, len(escapes), words(errno.errorcode[number] for number in stops)
    for kind, programs in PROGRAMS.items():
        yield "hang", kind, len(programs), words(f"`{error.__name__}`" for error, _, _ in programs.values())


def words(each: Iterable[str]) -> str:
    """Return words in order, each once."""
    return ", ".join(sorted(set(each)))


def lists() -> str:
    """Return what was tried, a line for each list."""
    kinds: dict[str, list[str]] = {}
    for name, kind, count, verdict in attempts():
        kinds.setdefault(name, []).append(f"{kind} ({count}): {verdict}")
    lines = [f"- **{name.capitalize()}s.** {'; '.join(each)}." for name, each in kinds.items()]
    wrong = f"{len(KINDS)} kinds, with up to {len(VERDICTS)} kinds of damage: read, or refused in one message."
    lines.append(f"- **Damaged files.** {wrong}")
    return "\n".join([*lines, ""])


def refreshed() -> str:
    """Return the page with what the lists say."""
    return _LISTS.sub(lambda found: f"{found[1]}{lists()}{found[2]}", PAGE.read_text(encoding="utf-8"))


def test_the_page_has_the_lists_as_they_are() -> None:
    assert PAGE.read_text(encoding="utf-8") == refreshed()
    assert lists() in refreshed()


if __name__ == "__main__":
    PAGE.write_text(refreshed(), encoding="utf-8")
