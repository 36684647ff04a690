"""Finding a strategy: a coroutine function, a shipped name, "path.py", "path.py:function", or "schedule.csv".

"path.py" names the only strategy of a file, and a CSV is the order of a pipeline as `torch.distributed.pipelining`
writes it (see `minitrain.search.schedules.pipeline`). What options a strategy takes is read from its signature.

Importing the files beside a strategy's file, as `python file.py` does, but apart from those of other strategies.

Python would find `helper.py` by its folder on `sys.path`, under the bare name `helper`, which then belongs to the whole
process: a second strategy with another `helper.py` would get the first one's. So a strategy's file and those beside it
become modules of a package of its own, and their imports of one another are read as relative ones: `import helper` as
`from . import helper`. Names of the standard library and of minitrain keep their meaning; what else is installed comes
second, as with `python file.py`.

Left out: what is imported under a name that is put together (`importlib.import_module(name)`), and extension modules.

A strategy together with options of its own, as in "pp_dp:pp=4", for `simulate`, `compare` and sweeps.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import inspect
import re
import sys
import traceback
import warnings
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, PathFinder, SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from math import gcd
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from minitrain.errors import StrategyError
from minitrain.files import is_file
from minitrain.machine.platforms import MEGATRON, TORCHTITAN, StandsFor
from minitrain.plain_text import meanings_of
from minitrain.run.above import above

if TYPE_CHECKING:
    from minitrain.engine.model import Model
    from minitrain.engine.strategy_model import StrategyModel


_PREFIX = "minitrain_strategy_"
_TAKEN = sys.stdlib_module_names | {"minitrain"}


def fresh_module(path: Path) -> ModuleType:
    """Return the module of a strategy's file, which is not executed yet; what its package held before is forgotten."""
    folder, name = path.absolute().parent, re.sub(r"\W", "_", path.stem)
    package = ModuleType(f"{_PREFIX}{name}_{sha256(bytes(path.absolute())).hexdigest()[:8]}")
    package.__path__ = [str(folder)]
    for known in [known for known in list(sys.modules) if known.startswith(f"{package.__name__}.")]:
        sys.modules.pop(known, None)
    sys.modules[package.__name__] = package
    if not any(isinstance(finder, _FindsBeside) for finder in sys.meta_path):
        sys.meta_path.insert(0, _FindsBeside())  # Python's own would find them, too, and not rewrite imports
    full_name = f"{package.__name__}.{name}"
    spec = spec_from_file_location(full_name, path, loader=_Loader(full_name, str(path)))
    assert spec is not None  # it has a loader
    module = module_from_spec(spec)
    sys.modules[full_name] = module  # where dataclasses and pickles look for what a class refers to
    return module


def strategy_packages() -> list[ModuleType]:
    """Return the packages of all strategies' files that were loaded."""
    return [module for name, module in list(sys.modules.items()) if name.startswith(_PREFIX) and "." not in name]


def why_not_imported(error: BaseException, path: Path) -> str:
    """Return in words that an import found a module of Python's, where that may be why loading a file failed.

    Args:
        error: what loading raised.
        path: the file.
    """
    name = getattr(error, "name", None) if isinstance(error, ImportError) else _module_asked(error)
    if name not in _TAKEN or name not in _names_beside(path.absolute().parent):
        return ""
    owner = "minitrain" if name == "minitrain" else "Python's own"
    return f"; {name} is {owner} module, not the {name} beside {path.name}: call that otherwise"


def _module_asked(error: BaseException) -> Any:
    """Return the name of the module that has no attribute of a name, if that is the error."""
    return getattr(getattr(error, "obj", None), "__name__", None) if isinstance(error, AttributeError) else None


def as_imported(text: str, module: ModuleType) -> str:
    """Return an error's text with the names of files beside a strategy's as these import one another."""
    return text.replace(f"{module.__name__.partition('.')[0]}.", "")


class _FindsBeside:
    """Find the modules of the packages that strategies' files have."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:  # noqa: ARG002  (Python's names)
        """Return where a module is found, or None."""
        if not fullname.startswith(_PREFIX) or path is None:
            return None
        found = (FileFinder(folder, (_Loader, SOURCE_SUFFIXES)).find_spec(fullname) for folder in path)
        return next(filter(None, found), None)


class _Loader(SourceFileLoader):
    """Load a file whose imports of files beside the strategy are relative."""

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the code of the module; what Python keeps in __pycache__ is that of `python file.py`, and stays so."""
        folder = Path(sys.modules[fullname.partition(".")[0]].__path__[0])
        source = self.get_data(self.path)
        names = {name for name in _names_beside(folder) - _TAKEN if name.encode() in source}
        if not names:
            return super().get_code(fullname)
        depth = fullname.count(".") + self.is_package(fullname)
        tree = _Relative(names, depth).visit(ast.parse(source, self.path))
        return compile(ast.fix_missing_locations(tree), self.path, "exec", dont_inherit=True)


def _names_beside(folder: Path) -> set[str]:
    """Return the names under which the files and packages of a folder can be imported; none if it cannot be read."""
    with contextlib.suppress(OSError):
        entries = list(folder.iterdir())
        files = {entry.stem for entry in entries if entry.suffix == ".py"}
        return files | {entry.name for entry in entries if entry.is_dir() and _is_package(entry)}
    return set()


def _is_package(folder: Path) -> bool:
    """Return whether a folder is imported by its name: without an __init__.py, what is installed comes first."""
    if (folder / "__init__.py").is_file():
        return True
    return any(folder.glob("*.py")) and PathFinder.find_spec(folder.name) is None


class _Relative(ast.NodeTransformer):
    """Make absolute imports of some modules relative.

    Args:
        names: of the modules.
        level: how many packages up they lie.
    """

    def __init__(self, names: set[str], level: int) -> None:
        self.names = names
        self.level = level

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        """Read `from helper import x` as `from .helper import x`."""
        if not node.level and node.module and node.module.partition(".")[0] in self.names:
            node.level = self.level
        return node

    def visit_Import(self, node: ast.Import) -> list[ast.AST]:
        """Read `import helper` as `from . import helper`, each name of a statement for itself."""
        return [made for alias in node.names for made in self._imported(node, alias)]

    def _imported(self, node: ast.Import, alias: ast.alias) -> list[ast.AST]:
        """Return the statements that one name of an import becomes."""
        top, _, rest = alias.name.partition(".")
        if top not in self.names:
            return [ast.copy_location(ast.Import([alias]), node)]
        if not rest:
            return [self._from(node, None, alias.name, alias.asname)]
        parent, _, last = alias.name.rpartition(".")
        if alias.asname:
            return [self._from(node, parent, last, alias.asname)]
        name = f"_{last}_of_{parent.replace('.', '_')}"  # the import itself makes it an attribute of its package
        return [self._from(node, None, top, None), self._from(node, parent, last, name)]

    def _from(self, node: ast.Import, module: str | None, name: str, as_name: str | None) -> ast.AST:
        """Return a relative import at the place of another."""
        return ast.copy_location(ast.ImportFrom(module, [ast.alias(name, as_name)], self.level), node)


Strategy = Callable[..., Awaitable["StrategyModel"]]
ShippedStrategy = Callable[..., Awaitable["Model"]]

_SPELLED_OTHERWISE = {"one_f_one_b": "1f1b"}


def strategies() -> dict[str, ShippedStrategy]:
    """Return the shipped strategies by name ("1f1b" for `one_f_one_b`)."""
    return dict(_shipped())


@lru_cache(maxsize=1)
def _shipped() -> Mapping[str, ShippedStrategy]:
    """Import the shipped strategies, once."""
    shipped = above("shipped strategies")
    return {_SPELLED_OTHERWISE.get(name, name): getattr(shipped, name) for name in shipped.__all__}


def is_shipped(strategy: Strategy) -> bool:
    """Return whether a strategy is the very function that is shipped."""
    return any(strategy is shipped for shipped in _shipped().values())


def framework_of(strategy: Strategy) -> str | None:
    """Return the framework that a strategy stands for, whose platform prices a transformer's kernels; None for none.

    A strategy of one's own says it by an attribute, as in `mine.framework = "torchtitan"`. Of the shipped ones, those
    with tensor parallelism beside pipelines, and those with experts, are Megatron-Core's. Replicas, ZeRO, FSDP and
    pipelines whose ranks run actions in order are PyTorch's, which torchtitan compiles.
    """
    function = unwrapped(strategy)
    own: str | None = getattr(function, "framework", None)
    if own is not None or not is_shipped(function):
        return own
    return MEGATRON if _name_of(function) in _OF_MEGATRON else TORCHTITAN


def stands_for(strategy: Strategy, options: Mapping[str, Any], world_size: int) -> StandsFor:
    """Return what a run of a strategy stands for.

    Args:
        strategy: the strategy.
        options: those that it is given.
        world_size: number of ranks.
    """
    name = _name_of(strategy) if is_shipped(unwrapped(strategy)) else ""
    given = {**{each: option.default for each, option in options_of(strategy).items()}, **options}

    def count(option: str, usual: int) -> int:
        value = given.get(option, usual)
        return value if isinstance(value, int) and value > 0 else usual

    tp, ep = count("tp", 1), count("ep", 1)
    pp = count("pp", max(1, world_size // ep) if name in _OF_STAGES or "pp" in given else 1)
    zero = given.get("zero", _ZERO.get(name, 0))
    is_known = name or "pp" in given
    hides_parts, stage_size = tp > 1 and not given.get("overlap_parts"), max(1, world_size // pp) if is_known else 1
    num_replicas = max(1, world_size // (pp * tp))
    usual_shards = gcd(num_replicas, 8) if name == "hsdp" else num_replicas // count("replicas", 1)
    num_shards = count("shard_size", usual_shards)
    return StandsFor(framework_of(strategy), hides_parts, stage_size, num_replicas, zero, num_shards)


_ZERO = {
    **dict.fromkeys(("zero1", "pp_zero1"), 1),
    "zero2": 2,
    **dict.fromkeys(("fsdp", "hsdp", "pp_hsdp", "pp_zero3", "zero3", "zero3_prefetch"), 3),
}
"""What replicas shard in shipped strategies that have no option of that name."""

_OF_STAGES = ("1f1b", "gpipe", "zb_h1")
"""The shipped strategies whose ranks are the places of one pipeline."""


def hides_collectives(strategy: Strategy) -> bool:
    """Return whether a strategy's gathers and reductions of shards run beside computing: those of `fsdp` do."""
    return is_shipped(unwrapped(strategy)) and _name_of(strategy) == "fsdp"


_OF_MEGATRON = ("deepseek_like", "megatron", "moe")


def load_strategy(strategy: str | Strategy) -> tuple[str, Strategy]:
    """Return a strategy's name and coroutine function.

    Args:
        strategy: a coroutine function, a shipped name or alias, "path.py", "path.py:function" or "schedule.csv".

    Raises:
        StrategyError: there is no such strategy, its file cannot be loaded, or it is not an async function of a model.
    """
    if isinstance(strategy, str):
        name, function = _load_from_text(strategy)
    else:
        name, function = _name_of(strategy), strategy
    if not _is_coroutine_function(function):
        rule = f"a strategy must be an async function, `async def {name}(model): ...`, got {function!r:.80}"
        remedy = "; leave out its `yield`" if inspect.isasyncgenfunction(unwrapped(function)) else ""
        raise StrategyError(f"{rule}{remedy}", strategy=name)
    return name, function


def _name_of(strategy: Any) -> str:
    """Return the name of a function, of the one in a partial, or of a callable object's class."""
    function = unwrapped(strategy)
    name = getattr(function, "__name__", type(function).__name__)
    return _SPELLED_OTHERWISE.get(name, name) if function in _shipped().values() else name


def unwrapped(function: Any) -> Any:
    """Return the function in a partial of it."""
    while hasattr(function, "func"):
        function = function.func
    return function


def _is_coroutine_function(function: Any) -> bool:
    """Return whether calling gives a coroutine, for functions, partials and callable objects."""
    function = unwrapped(function)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004  (not whether, but what kind)


def file_in(text: str) -> Path | None:
    """Return the file that a strategy without options is given by, None for the name of a shipped one.

    >>> file_in("mine.py:mine"), file_in("mine.py"), file_in("ddp")
    (PosixPath('mine.py'), PosixPath('mine.py'), None)
    """
    path = text.rpartition(":")[0]
    return Path(path) if path.endswith(".py") else Path(text) if text.endswith((".py", ".csv")) else None


_ELSEWHERE: ContextVar[Mapping[str, Path]] = ContextVar("where files of strategies are that were sent here")


@contextmanager
def loading_from(elsewhere: Mapping[str, Path]) -> Iterator[None]:
    """Load strategies of some files from elsewhere: a worker on another machine has copies of them."""
    token = _ELSEWHERE.set(elsewhere)
    try:
        yield
    finally:
        _ELSEWHERE.reset(token)


def _load_from_text(text: str) -> tuple[str, Strategy]:
    """Return a shipped strategy, or one from a file."""
    path = file_in(text)
    if path is not None:
        found = _ELSEWHERE.get({}).get(str(path), path)
        if text.endswith(".csv"):
            return path.stem, _run_schedule(found, found.stat().st_mtime_ns if is_file(found) else 0)
        if text.endswith(".py"):
            return _load_only_one(found)
        function_name = text.rpartition(":")[2]
        return function_name, _load_from_file(found, function_name)
    shipped = _shipped()
    name = _SPELLED_OTHERWISE.get(text, text)
    if name not in shipped:
        if not shipped:
            raise StrategyError(
                f"there is no strategy {text!r:.80}: this is the minitrain for students, which ships none; give "
                "path.py, path.py:function or a schedule.csv",
                strategy=text,
            )
        close = [f"{text}.py"] if is_file(f"{text}.py") else difflib.get_close_matches(text, shipped, 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise StrategyError(
            f"there is no strategy {text!r:.80}{hint or ';'} use one of {', '.join(shipped)}, path.py:function, or a "
            "schedule.csv",
            strategy=text,
        )
    return name, shipped[name]


@lru_cache(maxsize=16)
def _run_schedule(path: Path, changed_ns: int) -> Strategy:  # noqa: ARG001  (a file that has changed is read again)
    """Return the strategy that runs the schedule of a CSV file."""
    read: Callable[[Path], Strategy] = above("schedules").from_schedule_file
    return read(path)


def _load_only_one(path: Path) -> tuple[str, Strategy]:
    """Return the name and the function of the only strategy of a Python file."""
    found = strategies_of_file(path)
    if len(found) == 1:
        return next(iter(found.items()))
    if not found:
        raise StrategyError(
            f"{path} has no strategy, an async function of one argument: `async def mine(model): ...`", path=str(path)
        )
    raise StrategyError(
        f"{path} has {len(found)} strategies, {', '.join(found)}; say which: {path}:{next(iter(found))}", path=str(path)
    )


def strategies_of_file(path: Path) -> dict[str, Strategy]:
    """Return the strategies of a Python file by name: public async functions of one model that it defines or makes.

    Where there are none, those whose first argument is `model`: others, such as `microbatch_size`, are options. A
    function that is given a layer is a part of a strategy.

    Raises:
        StrategyError: the file cannot be loaded.
    """
    module = _module_of(path)
    functions = {
        name: function
        for name, function in vars(module).items()
        if inspect.iscoroutinefunction(function) and not name.startswith("_") and _is_of(module, function)
    }
    of_model = {name: function for name, function in functions.items() if _takes_a_model(function)}
    names = {name: [*inspect.signature(function).parameters] for name, function in functions.items()}
    return of_model or {
        name: functions[name] for name, taken in names.items() if taken[:1] == ["model"] and "layer" not in taken
    }


def _is_of(module: ModuleType, function: Strategy) -> bool:
    """Return whether a module defines a function, or has it made: by `from_schedule`, whose module does not hold it."""
    name = getattr(function, "__module__", None)
    maker = sys.modules.get(name or "")
    return name == module.__name__ or (
        maker is not None and all(known is not function for known in vars(maker).values())
    )


def strategies_of_folder(folder: Path) -> list[str]:
    """Return the strategies of a folder's Python files as "path.py:function"; files that cannot be loaded have none."""
    found = []
    for path in sorted(folder.glob("*.py")):
        with contextlib.suppress(StrategyError):
            found += [f"{path}:{name}" for name in strategies_of_file(path)]
    return found


def _takes_a_model(function: Strategy) -> bool:
    """Return whether a function can be called with a model, and options by name where it requires some."""
    parameters = inspect.signature(function).parameters.values()
    required = [known.name for known in parameters if known.kind is known.KEYWORD_ONLY and known.default is known.empty]
    try:
        _bind_once(function, *required)
    except TypeError:
        return False
    return True


def takes_option(strategy: Strategy, option: str) -> bool:
    """Return whether a strategy has an option of a name."""
    parameters = inspect.signature(strategy).parameters.values()
    return any(known.kind is known.VAR_KEYWORD for known in parameters) or option in options_of(strategy)


def options_of(strategy: Strategy) -> dict[str, inspect.Parameter]:
    """Return the options of a strategy by name: what can be given by name after the model."""
    after_model = list(inspect.signature(strategy).parameters.values())[1:]
    return {
        known.name: known for known in after_model if known.kind in (known.KEYWORD_ONLY, known.POSITIONAL_OR_KEYWORD)
    }


@dataclass(frozen=True, slots=True)
class StrategyOption:
    """An option of a strategy, as its signature and its docstring have it.

    Args:
        name: its name.
        default: its value where it is left out; None also where there is none.
        is_required: whether it has to be given.
        meaning: what its docstring says.
    """

    name: str
    default: Any
    is_required: bool
    meaning: str


def documented_options(strategy: Strategy) -> list[StrategyOption]:
    """Return the options of a strategy, in the order of its signature."""
    meanings = meanings_of(inspect.getdoc(unwrapped(strategy)))
    return [
        StrategyOption(
            known.name,
            None if known.default is known.empty else known.default,
            known.default is known.empty,
            meanings.get(known.name, ""),
        )
        for known in options_of(strategy).values()
    ]


def _load_from_file(path: Path, function_name: str) -> Strategy:
    """Return a function of a Python file."""
    module = _module_of(path)
    function = getattr(module, function_name, None)
    if function is None:
        found = [name for name, value in vars(module).items() if inspect.iscoroutinefunction(value)]
        message = f"{path} has no function {function_name!r}; its async functions are {', '.join(found) or 'none'}"
        raise StrategyError(message, path=str(path))
    return function  # type: ignore[no-any-return]  # load_strategy checks its kind


def _module_of(path: Path) -> ModuleType:
    """Import a Python file under a module name of its own; it may import files beside it."""
    if not is_file(path):
        raise StrategyError(f"there is no strategy file {path}; give path.py:function", path=str(path))
    module = fresh_module(path)
    assert module.__spec__ is not None  # it has just been made
    assert module.__spec__.loader is not None
    try:
        module.__spec__.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        name = ": ".join(filter(None, (type(error).__name__, as_imported(str(error), module))))
        said = f"{name}{_line_of(error, path)}{why_not_imported(error, path)}"
        raise StrategyError(f"the strategy file {path} cannot be loaded: {said}", path=str(path)) from error
    return module


def _line_of(error: BaseException, path: Path) -> str:
    """Return the line of the file at which an error was raised, in words."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f" (line {lines[-1]})" if lines else ""  # a syntax error names its line itself


def _bind(strategy: Strategy, *options: str) -> None:
    """Bind options to the parameters of a strategy.

    Raises:
        TypeError: an option is no parameter, or a parameter has no value.
    """
    inspect.signature(strategy).bind(None, **dict.fromkeys(options))


_bound: WeakKeyDictionary[Strategy, set[tuple[str, ...]]] = WeakKeyDictionary()  # a function may hold a whole run


def _bind_once(strategy: Strategy, *options: str) -> None:
    """Bind options as `_bind` does, once for a function: a sweep asks a thousand times a second."""
    known = _bound.setdefault(strategy, set()) if isinstance(strategy, FunctionType) else set()
    if options not in known:
        _bind(strategy, *options)
        known.add(options)


def require_options(name: str, strategy: Strategy, options: Mapping[str, Any], known: Iterable[str] = ()) -> None:
    """Require that a strategy can be called with a model and some options.

    Args:
        name: the strategy's name.
        strategy: the strategy.
        options: what it is to be called with.
        known: other names that might have been meant, those of a run's parameters.

    Raises:
        StrategyError: it takes other parameters.
    """
    try:
        _bind_once(strategy, *options)
    except TypeError as error:
        why = _why_not_called(name, strategy, options, known) or f"the strategy {name} cannot be called: {error}"
        raise StrategyError(why, strategy=name) from error


def _why_not_called(name: str, strategy: Strategy, options: Mapping[str, Any], known: Iterable[str]) -> str:
    """Return what is wrong with a strategy or its options and what to do, in words; nothing if Python says it best."""
    own = options_of(strategy)
    unknown = [option for option in options if not takes_option(strategy, option)]
    if unknown:
        given = " and ".join(f"{option}={options[option]!r:.80}" for option in unknown)
        of_others = {option for shipped in _shipped().values() for option in options_of(shipped)}  # none is misspelt
        meant = "".join(did_you_mean(option, [*own, *known]) for option in unknown if option not in of_others)
        meant = meant.replace("?; did you mean", " and")
        return f"the strategy {name} does not take {given}{meant or ';'} {_what_it_takes(name, strategy)}"
    missing = [option for option, found in own.items() if found.default is found.empty and option not in options]
    if missing:
        return f"the strategy {name} needs {' and '.join(missing)}; give {', '.join(f'{one}=...' for one in missing)}"
    if not _takes_a_model(strategy):
        return f"the strategy {name} must take one argument, the model of a rank: `async def {name}(model): ...`"
    return ""


def _what_it_takes(name: str, strategy: Strategy) -> str:
    """Return which options a strategy takes, or how to see those of a shipped one, in words."""
    if is_shipped(strategy):
        return f"`minitrain strategies {name}` lists its options"
    return f"its options are {', '.join(options_of(strategy)) or 'none'}"


_CALLED_ELSEWHERE = {"model": "workload", "seq": "seq_len", "sequence_length": "seq_len", "hw": "hardware"}
"""What the command line and other tools call parameters."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return in words which of the known names was meant by one that is not among them, or nothing.

    >>> did_you_mean("wrold_size", ["num_layers", "world_size"])
    '; did you mean world_size?'
    """
    listed = list(known)
    if _CALLED_ELSEWHERE.get(name) in listed:
        return f"; did you mean {_CALLED_ELSEWHERE[name]}?"
    close = [] if name in listed else difflib.get_close_matches(name, listed, 1)
    return f"; did you mean {close[0]}?" if close else ""


@dataclass(frozen=True, slots=True)
class ChosenStrategy:
    """A strategy that was found, with the options that were given to it alone; it can be called as a strategy is.

    Args:
        name: the strategy's name.
        function: the strategy.
        options: its own options.
        label: what tells it apart from the same strategy with other options.
    """

    name: str
    function: Strategy
    options: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""

    def __call__(self, model: StrategyModel, **options: Any) -> Awaitable[StrategyModel]:
        """Run the strategy on one rank."""
        return self.function(model, **self.options, **options)

    def options_with(self, common: Mapping[str, Any], parameters: Iterable[str] = ()) -> dict[str, Any]:
        """Return its own options together with those that several strategies have in common.

        Args:
            common: options for all strategies.
            parameters: names that are no options, but parameters of the run.

        Raises:
            StrategyError: an option is given both ways, is a parameter of the run, or is none of the strategy.
        """
        for name in self.options:
            if name in common:
                raise StrategyError(
                    f"{name} is given twice: in {self.label}, and as {name}={common[name]!r} for all; leave one out"
                )
            if name in parameters:
                raise StrategyError(f"{name} in {self.label} is no option of a strategy, but a parameter of the run")
        options = {**common, **self.options}
        require_options(self.name, self.function, options, parameters)
        return options


def choose_strategy(strategy: str | Strategy) -> ChosenStrategy:
    """Find a strategy, and read the options that follow its name.

    Args:
        strategy: what `load_strategy` takes, or a name with options: "pp_dp:pp=4".

    Raises:
        StrategyError: there is no such strategy, or the options cannot be read.
    """
    if isinstance(strategy, ChosenStrategy):
        return strategy
    bare, options = split_options(strategy) if isinstance(strategy, str) else (strategy, {})
    name, function = load_strategy(bare)
    if not options:
        return ChosenStrategy(name, function, options, name)
    pairs = ",".join(f"{option}={value}" for option, value in options.items())
    return ChosenStrategy(name, function, options, f"{name}:{pairs}")


def split_options(strategy: str) -> tuple[str, dict[str, Any]]:
    """Return a strategy without the options that follow its name, and these; values are Python literals, or else text.

    Raises:
        StrategyError: an option is no name=value, or is given twice.

    >>> split_options("pp_dp:pp=4,microbatch_size=2")
    ('pp_dp', {'pp': 4, 'microbatch_size': 2})
    >>> split_options("mine.py:mine:order='a,b'")
    ('mine.py:mine', {'order': 'a,b'})
    >>> split_options("mine.py:mine")
    ('mine.py:mine', {})
    """
    if "=" not in strategy:
        return strategy, {}
    name, colon, text = _name_and_options(strategy)
    options: dict[str, Any] = {}
    for pair in _at_commas(text):
        option, equals, value = (part.strip() for part in pair.partition("="))
        if not (colon and equals and option.isidentifier() and value) or option in options:
            message = f"options of one strategy are written name:option=value,option=value, each once; got {strategy!r}"
            raise StrategyError(message, strategy=strategy)
        options[option] = literal(value)
    return name, options


def _name_and_options(text: str) -> tuple[str, str, str]:
    """Return what is before the last colon before the first "=", the colon, and what follows it."""
    before = text.partition("=")[0]
    name, colon, _ = before.rpartition(":")
    return name, colon, text[len(name) + len(colon) :]


def _at_commas(text: str) -> Iterable[str]:
    """Split at commas that are not inside brackets or quotes."""
    pieces = [""]
    for part in text.split(","):
        is_whole = pieces[-1] == "" or _is_closed(pieces[-1])
        pieces = [*pieces, part] if is_whole else [*pieces[:-1], f"{pieces[-1]},{part}"]
    return pieces[1:]


def _is_closed(text: str) -> bool:
    """Return whether every bracket and quote in a text is closed."""
    brackets = all(text.count(left) <= text.count(right) for left, right in ("()", "[]", "{}"))
    return brackets and all(text.count(quote) % 2 == 0 for quote in "'\"")


def literal(text: str) -> Any:
    """Return the Python literal that a text is, or the text."""
    try:
        with warnings.catch_warnings(action="ignore"):  # warnings about odd spellings such as "1if"
            return ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return text
