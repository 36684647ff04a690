"""The page of what the specifications say: current, and each statement that is met has a test that is there."""

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def loaded() -> Any:
    spec = importlib.util.spec_from_file_location("specifications", ROOT / "docs" / "specifications.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["specifications"] = module
    spec.loader.exec_module(module)
    return module


SPECIFICATIONS = loaded()
STATEMENTS = SPECIFICATIONS.statements()


def test_the_page_is_what_the_list_says() -> None:
    assert SPECIFICATIONS.PAGE.read_text(encoding="utf-8") == SPECIFICATIONS.page()


def test_all_five_specifications_are_there() -> None:
    assert len({each.specification for each in STATEMENTS}) == 5
    assert len({(each.specification, each.text) for each in STATEMENTS}) == len(STATEMENTS)


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda each: f"{each.specification}: {each.text}")
def test_a_statement_has_its_test_or_says_why_not(statement: Any) -> None:
    if not statement.test:
        assert statement.why
        return
    file, _, name = statement.test.partition("::")
    assert re.search(rf"^(async )?def {name}\(", (ROOT / "tests" / file).read_text(encoding="utf-8"), re.MULTILINE)
