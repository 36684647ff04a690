"""Megatron-LM's command line: its options as fields of Megatron Core's configuration, and the other way round.

Source: `megatron/training/arguments.py` of Megatron-LM 0.14. `--window-size`, `--softmax-type` and
`--num-virtual-stages-per-pipeline-rank` are newer than 0.10.

The words of a launch script of a shell: options with their values, variables and arrays put in.

Read are assignments (`TP=8`, `ARGS=(...)`, `ARGS="--a 1"`, `${TP:-8}`), products and sums of them (`$((TP * PP))`), and
everything that begins with two dashes. Loops and conditions are not followed: what stands in any branch is read, and an
option that is given twice with different values is a fault. A variable that the script does not set stays as it is.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from minitrain.errors import UsageError, closest, refuse
from minitrain.files import read_json
from minitrain.workloads.exchange.megatron_core import (
    evaluated,
    layout_fields,
    layout_of,
    model_fields,
    model_of,
    notes_on,
)
from minitrain.workloads.exchange.recipe import Recipe, known_words

_ASSIGNMENT = re.compile(r"(\w+)\+?=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$\{(\w+)(?:\[[@*]\])?(?::?-([^}]*))?\}|\$(\w+)")
_ARITHMETIC = re.compile(r"\$\(\(([^()]*(?:\([^()]*\)[^()]*)*)\)\)")
_RANKS = ("--nproc-per-node", "--nnodes")


@dataclass(frozen=True, slots=True)
class Words:
    """The options of a command.

    Args:
        options: values by option, which begins with two dashes and has no underscore.
    """

    options: Mapping[str, Sequence[str]]

    @property
    def world_size(self) -> int | None:
        """The ranks that torchrun is to start; None where that is not said in numbers."""
        values = [self.options.get(option, ["1" if option == "--nnodes" else ""])[0] for option in _RANKS]
        return int(values[0]) * int(values[1]) if all(value.isdigit() for value in values) else None

    def without(self, names: Sequence[str]) -> Words:
        """Return them without some options."""
        left_out = {option_name(name) for name in names}
        return Words({name: values for name, values in self.options.items() if name not in left_out})


def words_of(text: str) -> Words:
    """Return the options of a script, or of the command line itself.

    Raises:
        UsageError: a quote is not closed, or an option is given twice with different values.

    Example:
        >>> words_of("TP=2; ARGS=(--size $((TP * 4)) --flag)".replace("; ", chr(10)) + " --nnodes 2 ${ARGS[@]}").options
        {'--nnodes': ['2'], '--size': ['8'], '--flag': []}
    """
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for word in _words(_tokens(text)):
        if not word.startswith("--"):
            current.append(word)
            continue
        name, equals, value = word.partition("=")
        current = [value] if equals else []
        found.setdefault(option_name(name) + (" (again)" if option_name(name) in found else ""), current)
    again = [name for name in found if name.endswith(" (again)")]
    for name in again:
        if found.pop(name)[:1] != found[name.removesuffix(" (again)")][:1]:
            raise UsageError(f"{name.removesuffix(' (again)')} is given twice with different values; leave one out")
    return Words(found)


def option_name(word: str) -> str:
    """Return an option's name with dashes alone.

    >>> option_name("--nproc_per_node")
    '--nproc-per-node'
    """
    return "--" + word.strip().lstrip("-").replace("_", "-")


def _tokens(text: str) -> list[str]:
    """Return the words of a shell, quotes taken away, products put in."""
    joined = _ARITHMETIC.sub(lambda found: "$((" + re.sub(r"\s+", "", found[1]) + "))", text.replace("\\\n", " "))
    try:
        return shlex.split(joined, comments=True)
    except ValueError as error:
        raise UsageError(f"the script cannot be read: {error}; close the quote") from None


def _words(tokens: Sequence[str]) -> Iterator[str]:
    """Yield words, with the values of variables put in where these are used."""
    variables: dict[str, list[str]] = {}
    places = iter(tokens)
    for token in places:
        assigned = None if token.startswith("-") else _ASSIGNMENT.fullmatch(token)
        if assigned is None:
            yield from _put_in(token, variables)
        else:
            name, value = assigned.groups()
            words = _array(value[1:], places) if value.startswith("(") else [value]
            new = [word for each in words for word in _put_in(each, variables)]
            variables[name] = [*variables.get(name, []), *new] if "+=" in token[: len(name) + 2] else new


def _array(first: str, places: Iterator[str]) -> Iterator[str]:
    """Yield the words of an array, up to its closing bracket."""
    word = first
    while word != ")":
        if word.endswith(")") and word.count(")") > word.count("("):
            if word[:-1]:
                yield word[:-1]
            return
        if word:
            yield word
        word = next(places, ")")


def _put_in(word: str, variables: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the words of a word that may be a variable, or have some in it."""
    whole = _VARIABLE.fullmatch(word)
    if whole is not None and (whole[1] or whole[3]) in variables:
        return [part for value in variables[whole[1] or whole[3]] for part in _split(value)]
    return [_summed(_VARIABLE.sub(lambda found: _value(found, variables), word), variables)]


def _split(value: str) -> list[str]:
    """Return the words of a variable that holds several."""
    return value.split() if value.lstrip().startswith("--") else [value]


def _value(found: re.Match[str], variables: Mapping[str, Sequence[str]]) -> str:
    """Return what stands for a variable: its value, its default, or itself."""
    known = variables.get(found[1] or found[3])
    if known is not None:
        return " ".join(known)
    return found[2] if found[2] is not None else found[0]


def _summed(word: str, variables: Mapping[str, Sequence[str]]) -> str:
    """Return a word with its products and sums of integers done."""

    def result(found: re.Match[str]) -> str:
        named = re.sub(r"[A-Za-z_]\w*", lambda name: " ".join(variables.get(name[0], [name[0]])), found[1])
        try:
            return str(evaluated(named))
        except ValueError:
            return found[0]

    return _ARITHMETIC.sub(result, word)


Kind = Literal["count", "number", "text", "list", "words", "on", "off"]

TOOL = "megatron-lm"
_NULL = "NullTokenizer"  # its vocabulary has one more than `--vocab-size`, for the end of a document
_READ: Mapping[str, Callable[[str], Any]] = {"count": int, "number": float, "text": str, "list": evaluated}


@dataclass(frozen=True, slots=True)
class Option:
    """An option of the command line.

    Args:
        field: Megatron Core's name for it.
        flag: as it is written.
        kind: "count", "number", "text" or "list" of what follows, or its "words"; "on" or "off" where it stands alone.
    """

    field: str
    flag: str
    kind: Kind

    def words(self, value: Any) -> str:
        """Return it as it is written with a value; nothing where it is left out for that."""
        if self.kind in ("on", "off"):
            return self.flag if bool(value) is (self.kind == "on") else ""
        if self.kind == "words":
            return f"{self.flag} {' '.join(value)}"
        return "" if value is None else f"{self.flag} {_text(value, self.field)}"


def _text(value: Any, field: str) -> str:
    """Return a value as it is written; a pattern of layers as the list that Python's expression makes."""
    if not isinstance(value, list):
        return str(value)
    if field == "window_size":
        return ",".join(map(str, value))
    short = "+".join(f"[{number}]*{len(list(each))}" for number, each in groupby(value))
    whole = "[" + ",".join(map(str, value)) + "]"
    return f'"({short})"' if len(short) < len(whole) else f'"{whole}"'


def _options(kind: Kind, words: Sequence[str]) -> Iterator[Option]:
    """Yield options of a kind: those that are called as their fields, and others as "field=flag"."""
    for word in words:
        field, _, flag = word.partition("=")
        yield Option(field, f"--{flag or field.replace('_', '-')}", kind)


TABLES: Mapping[str, Any] = read_json(Path(__file__).with_suffix(".json"))
OPTIONS = tuple(option for kind, words in TABLES["options"].items() for option in _options(kind, words))
_BY_FLAG: Mapping[str, Option] = {option.flag: option for option in OPTIONS}
_OTHER_NAMES: Mapping[str, str] = TABLES["other_names"]
_ONLY: Mapping[str, Sequence[str]] = TABLES["only"]
"""Values that have no bearing here; others have, or are none."""

_NEAR: Mapping[str, str] = TABLES["near"]
_BY_BLOCKS = frozenset({"blockwise", "mxfp8"})


def write(recipe: Recipe) -> str:
    """Return the options of a recipe that Megatron-LM can have, several a line."""
    fields = layout_fields(recipe)
    if (model := recipe.model) is not None:
        fields |= model_fields(model) | {"tokenizer_type": _NULL, "vocab_size": model.vocab_size - 1}
        fields["group_query_attention"] = model.latent is None and model.num_kv_heads != model.num_heads
        if not fields["group_query_attention"]:
            fields.pop("num_query_groups", None)
    words = [option.words(fields[option.field]) for option in OPTIONS if option.field in fields]
    return " \\\n".join(filter(None, words)) + "\n"


def read(words: Words, name: str) -> Recipe:
    """Return the recipe of a command line.

    Args:
        words: its words.
        name: what to call the model.

    Raises:
        UsageError: there are words that are not known, or that cannot be modelled; all at once.
    """
    faults: list[str] = []
    given = dict(_fields(words, faults))
    if given.pop("use_flash_attn", False):
        given.setdefault("attention_backend", "flash")
    if "--use-rotary-position-embeddings" in words.options:
        given["position_embedding_type"] = "rope"
    if "--no-position-embedding" in words.options and given.get("position_embedding_type") is None:
        faults.append("--no-position-embedding is not modelled, unless --position-embedding-type is given")
    if not given.pop("group_query_attention", False):
        given.pop("num_query_groups", None)
    if given.pop("tokenizer_type", None) == _NULL and "vocab_size" in given:
        given["vocab_size"] += 1
    strategy, options = layout_of(given, faults)
    model = model_of(given, name, faults)
    if faults:
        raise refuse(f"the arguments of {TOOL}", faults)
    return Recipe(
        strategy,
        options,
        model,
        words.world_size,
        given.get("global_batch_size"),
        (*notes_on(given), *_notes_on(words)),
        TOOL,
    )


def _notes_on(words: Words) -> Iterator[str]:
    """Yield what of a command line is read as something near."""
    yield from (note for flag, note in _NEAR.items() if flag in words.options)
    if _BY_BLOCKS & {*words.options.get("--fp8-recipe", ())}:
        yield "FP8 by blocks is priced as FP8 by tensors"


def _fields(words: Words, faults: list[str]) -> Iterator[tuple[str, Any]]:
    """Yield the fields that are given, with their values; faults are noted."""
    for flag, values in words.options.items():
        option = _BY_FLAG.get(_OTHER_NAMES.get(flag, flag))
        if option is not None:
            yield from _field(option, values, faults)
        elif flag in _ONLY and values[:1] and values[0] not in _ONLY[flag]:
            faults.append(f"{flag} must be one of {', '.join(_ONLY[flag])}, got {values[0]!r:.40}")
        elif flag not in known_words("Megatron-LM") | known_words("torchrun and Slurm"):
            hint = closest(flag, _BY_FLAG)
            faults.append(
                f"{flag} is not known{'; ' + hint if hint else ''}; if it has no bearing on the model, its layout and "
                f"its time, take it out, or pass ignore=({flag!r},) to mt.read_recipe"
            )


def _field(option: Option, values: Sequence[str], faults: list[str]) -> Iterator[tuple[str, Any]]:
    """Yield a field with its value, or note a fault."""
    if option.kind in ("on", "off"):
        if values and values[0].lower() in _TRUTHS:
            faults.append(f"{option.flag} stands alone, got {values[0]!r}; leave the value out, or both")
        yield option.field, option.kind == "on"
        return
    if not values or "$" in values[0]:
        faults.append(f"{option.flag} must have a value, got {values[0] if values else 'none'}; the script must set it")
        return
    if option.kind == "words":
        yield option.field, list(values)
        return
    if option.kind == "count" and values[1:] and values[1].isdigit():
        faults.append(f"{option.flag} must have one value, got {' '.join(values[:2])}")
    try:
        value = _READ[option.kind](values[0])
    except ValueError:
        faults.append(f"{option.flag} must be a {option.kind}, got {values[0]!r}")
        return
    if option.kind == "count" and value < ("moe" not in option.field):  # no experts are 0 of them
        faults.append(f"{option.flag} must be at least {int('moe' not in option.field)}, got {values[0]}")
    yield option.field, value


_TRUTHS = ("true", "false", "0", "1", "yes", "no", "on", "off", "none")
