"""Rooms import one way, say so themselves, and are drawn as they are; `docs/house.py` reads what files import."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import architecture
import house
import pytest

import minitrain

MOST_LINES = 800  # a file is one thing, whole
FEWEST_LINES = 40
PACKAGES = sorted(file for file in house.sources() if file.endswith("/__init__.py"))
FOLDERS = [file for file in PACKAGES if file.count("/") == 1]


def docstring(file: str) -> str:
    """Return the docstring of a file."""
    return ast.get_docstring(house.tree_of(file)) or ""


def imported_rooms(room: str) -> set[str]:
    """Return the rooms that a room imports."""
    return {house.room_of(one.target) for one in house.imports() if house.room_of(one.file) == room} - {room}


def test_every_file_is_in_a_room_and_every_room_is_there() -> None:
    assert {house.room_of(file) for file in house.sources()} == set(house.ROOMS)


def test_only_a_few_files_stand_beside_the_rooms() -> None:
    beside = {path.name for path in (house.ROOT / "minitrain").iterdir() if path.is_file()}
    assert beside == {
        "__init__.py",
        "__main__.py",
        "lib.py",
        "errors.py",
        "files.py",
        "hw.py",
        "plain_text.py",
        "source_lines.py",
        "py.typed",
        *(f"{name}.pyi" for name in ("devices", "heterogeneous", "platform", "schedules", "solver")),
    }


def test_rooms_import_from_the_floors_below() -> None:
    assert [str(one) for one in house.imports() if house.is_upward(one)] == []


def test_no_files_of_a_room_import_one_another_in_a_circle() -> None:
    inside = [one for one in house.imports() if house.room_of(one.file) == house.room_of(one.target)]
    circles = house.circles((one.file, one.target) for one in inside)
    assert [sorted(circle) for circle in circles] == []


@pytest.mark.parametrize("file", FOLDERS)
def test_a_room_says_what_it_imports(file: str) -> None:
    room, said = house.room_of(file), re.search(r"May import: (.*?)\.(\s|$)", docstring(file), re.DOTALL)
    assert said is not None, "the docstring needs a sentence that begins with 'May import:'"
    named = set(re.findall(r"`(\w+)`", said[1]))
    up_to = re.search(r"rooms up to `(\w+)`", said[1])
    below = {name for name in house.ROOMS if up_to and house.LEVELS[name] <= house.LEVELS[up_to[1]]}
    assert imported_rooms(room) <= named | below
    assert named - below <= imported_rooms(room), "a room that is named is one that is imported"


@pytest.mark.parametrize(
    "file", [file for file in PACKAGES if file != "learn/exercises/__init__.py"]
)  # which has no code
def test_a_room_says_what_lives_there_and_which_file_to_open_first(file: str) -> None:
    folder, text = file.removesuffix("__init__.py"), docstring(file)
    opened = re.search(r"Open (.*?) first", text, re.DOTALL)
    assert opened is not None, "the docstring needs a sentence 'Open `file` first'"
    names = re.findall(r"`([\w.]+)`", opened[1])
    assert names
    assert [name for name in names if folder + name.replace(".", "/") + ".py" not in house.sources()] == []
    assert text.index(".") < opened.start(), "what lives there comes first"


@pytest.mark.parametrize("file", PACKAGES)
def test_what_the_docstring_of_a_room_names_exists(file: str) -> None:
    room, folder = house.room_of(file), file.removesuffix("__init__.py")
    files = {name.removeprefix(folder).removesuffix(".py") for name in house.sources() if name.startswith(folder)}
    known = {name.replace("/", ".") for name in files} | {name.partition("/")[0] for name in files}
    known |= {name for other in house.sources() if house.room_of(other) == room for name in names_in(other)}
    named = re.findall(r"`(?:minitrain\.)?(\w[\w.]*)`", docstring(file))
    unknown = [name for name in named if name not in known | set(house.ROOMS) | public_names()]
    assert unknown == []


def names_in(file: str) -> set[str]:
    """Return what a file defines: `function`, `Class`, `Class.method`, `CONSTANT`."""
    found: set[str] = set()
    for node in house.tree_of(file).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            members = (one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef))
            found |= {f"{node.name}.{member.name}" for member in members}
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def public_names() -> set[str]:
    """Return the names that `import minitrain` offers, and their modules' own."""
    lazily = ast.unparse(house.tree_of("__init__.py"))
    return {*re.findall(r"(?:'|from minitrain\.)(\w[\w.]*)(?:'| import)", lazily), *minitrain.__all__}


def test_no_file_is_too_long() -> None:
    lengths = {file: len(house.text_of(file).splitlines()) for file in house.sources()}
    assert {file: length for file, length in lengths.items() if length > MOST_LINES} == {}


def test_a_short_file_says_why_it_is_one() -> None:
    pages = {"__init__.py", "__main__.py"}
    short = [
        file
        for file in house.sources()
        if len(house.text_of(file).splitlines()) < FEWEST_LINES and Path(file).name not in pages
    ]
    silent = [file for file in short if "file of its own" not in docstring(file) and not file.startswith("strategies/")]
    assert silent == [], "its docstring needs a sentence 'It is a file of its own, since ...'"


EXTENDED = """
Account Activation ActivationGrad AlikeLayers Architecture Arithmetic Attention Call ClusterWorkers Commands
Communication Communicator Compressing Compression Cost Dense DeviceMemoryFigures DevicePredictor DeviceSimulator Dist
EventlessRun Executor ExpertComputation Figure FiguresOfStep Findings FoldedGroup GpuSimulator Group HardwareTaxonomy
KernelHabits Launched LocalComputation Looks MatmulLayer Mesh Model NumpyBackend Observer OfOrigins Operation OptState
Overwrite PassMode PreparedRun Progress RankState ReadOnly ReadOnlyLog Retiming Run RunParameters Sampled Sharded
StepKeywords Store Task Tensor TestTask TiedEmbeddings TpuSimulator TransformerWorkload Weight WeightGrad
WorkloadProfile _ConfigPredictor _Copies _InSlot _OfHeads _OfParts _OfSequence _OverSome _Partial _Shard
"""


def test_no_class_extends_another_but_those_that_are_made_for_it() -> None:
    nodes = (node for file in house.sources() for node in ast.walk(house.tree_of(file)))
    classes = {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}
    bases = {name: {_last_name(base) for base in node.bases} for name, node in classes.items()}
    abstract = {
        name
        for name, node in classes.items()
        if any(isinstance(each, ast.Name) and each.id == "abstractmethod" for each in ast.walk(node))
    }
    abstract |= {name for name, found in bases.items() if found & {"ABC", "Protocol", "NamedTuple", "TypedDict"}}
    extended = set().union(*bases.values()) & classes.keys() - abstract
    assert {name for name in extended if not name.endswith(("Error", "Warning"))} == set(EXTENDED.split()), (
        "all others are final"
    )


def _last_name(base: ast.expr) -> str:
    """Return the name of a base without its module and its parameters."""
    return ast.unparse(base.value if isinstance(base, ast.Subscript) else base).rpartition(".")[2]


_PRIVATE = re.compile(
    r"\b(_getframe|get_objects|get_referents|get_referrers|__code__|f_back|gi_frame|ag_frame)\b"  # of the interpreter
    r"|\basyncio(\.\w+)*\._(?!_)\w+"
    r"|\bloop\._\w+|\._(ready|selector|signal_handlers|fut_waiter|callbacks|children|log_traceback|log_destroy_pending"
    r"|asyncio_future_blocking|run_once|wait)\b(?!\()"  # attributes of asyncio's objects
)


def test_nobody_reads_what_is_private_to_python_and_asyncio() -> None:
    """Grading and the exercises judge processes of others, and may.

    A browser's Python says that its loop always runs; what `asyncio.events.__all__` has for writers of loops helps.
    """
    files = [file for file in house.sources() if house.room_of(file) != "learn"]
    others = [file for file in files if file != "learn/explorer/in_browser.py"]
    assert [f"{file}: {match[0]}" for file in others for match in _PRIVATE.finditer(house.text_of(file))] == []
    assert [file for file in files if "cr_frame" in house.text_of(file)] == ["source_lines.py"]


def test_the_drawing_is_that_of_todays_imports() -> None:
    assert architecture.PICTURE.read_text(encoding="utf-8") == architecture.drawing(), "run python docs/architecture.py"


def paragraphs() -> list[str]:
    """Return the paragraphs, list items and table rows of the page."""
    return re.split(r"\n\n|\n(?=\d\.|\||- )", (house.ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))


def test_every_file_that_the_page_names_exists() -> None:
    named = {name for text in paragraphs() for name in re.findall(r"`([\w/]+(?:\.py|\.md|/))`", text)}
    roots = (house.ROOT, house.ROOT / "minitrain")
    assert [name for name in sorted(named) if not any((root / name).exists() for root in roots)] == []
    assert len(named) > 40


def test_every_function_that_the_page_names_is_in_a_file_that_its_paragraph_names() -> None:
    known = names_of_the_page()
    walk = [text for text in paragraphs() if re.match(r"\d\. ", text)]
    assert len(walk) == 8
    for text in walk:
        named = re.findall(r"`([A-Za-z_]\w*(?:\.\w+)?)`", text)
        assert [name for name in named if name not in known] == [], text


def names_of_the_page() -> set[str]:
    """Return what the files define that the page names."""
    whole = "\n".join(paragraphs())
    files = {name for name in re.findall(r"`([\w/]+\.py)`", whole) if name in house.sources()}
    return {name for file in files for name in names_in(file)} | {"Model"}


def test_the_page_answers_ten_changes_and_more() -> None:
    table = [text for text in paragraphs() if text.startswith("- ")]
    assert len(table) >= 30
    for row in table:
        assert re.search(r"`[\w/]+(\.py|\.js|/)`", row), row
