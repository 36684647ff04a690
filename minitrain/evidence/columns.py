"""The columns of tables of measured runs: their words, what each means, and errors for all others.

`columns.json` beside this file is the one list. A column is text that is not read, a count, a number, or words. Words
are phrases with what they mean: `"bf16; bfloat16": {"datatype": "bf16"}`. A phrase in `#` has a number there; a text
instead of a meaning says why such a row is refused; `silent` phrases mean nothing; "refused" and "everywhere" are those
of all columns. Case, hyphens and underscores do not
matter, and commas, slashes and brackets only part words.

A cell is read from left to right, by the longest phrase that fits; a word may be a plural. A word of no phrase is
refused, unless it stands in brackets, behind "not stated", or in a column of `prose`, and is no misspelt one: then it
is a remark, which is reported as not read. `turning` words, such as "except", are remarks in brackets alone. A second
phrase of another meaning contradicts the first one, and is refused.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import SequenceMatcher
from functools import cache, lru_cache
from importlib import resources
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from minitrain.workloads.mixers import LatentAttention

if TYPE_CHECKING:
    from minitrain.workloads.transformer import Transformer

_NUMBER = r"(\d+(?:\.\d+)?)"
_TOKEN = re.compile(r"=>|→|[()\[\]]|[^\s,;:/+&|@\"'()\[\]]+")
_BYTES_A_SECOND = re.compile(r"G(?:i)?B(?:/s|ps)")  # unlike Gb/s: bits
_BLANKS = str.maketrans(dict.fromkeys("-_\u2013\u2014", " "))
_BRACKETS = ("(", "[", ")", "]")
_ARROWS = ("=>", "→")
_ARROW = re.compile(r"->|→")
_BINARY = 1024.0
_COUNTED = re.compile(
    r"(?:[~≈] ?)?([-+]?(?:\d{1,3}(?:,\d{3})+|\d+(?:_\d{3})*)(?:\.\d+)?(?:[eE][-+]?\d+)?)\s*(.*)",
    re.DOTALL,
)
_NAMED = re.compile(r"([A-Za-z][A-Za-z _-]*?) ?[=: ] ?(?=[-+~≈\d])(.*)", re.DOTALL)  # "GA=4", "per_device_batch_size 4"
_GUESS = re.compile(r"\((?:assumed |about |[~≈] ?)([^()]+)\)")  # "not stated (~50k)"
_ALIKE = 0.75  # a remark's word that is as like a known one as this is a misspelt one
_MOST_SHOWN = 16


class ReadingError(Exception):
    """A cell has words that are not known, that contradict one another, or that have no price; its text says which."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a cell says.

    Args:
        facts: what it means, by the names of `columns.json`.
        is_stated: whether it means anything.
        is_empty: whether it is empty or "not stated"; a cell may be neither, of words that mean nothing.
        is_guessed: whether what it means stands behind an arrow: "not stated => unfused".
        remarks: what was not read, in words.
    """

    facts: Mapping[str, Any] = field(default_factory=dict)
    is_stated: bool = False
    is_empty: bool = True
    is_guessed: bool = False
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Assumption:
    """Something that a row does not say.

    Args:
        text: what it lacks, and what was taken: "vpp not stated: 1".
        column: where it would stand.
        others: cells that it could have had there; none where the sizes of the run leave no choice.
        is_open: whether nobody can tell what else it could be.
    """

    text: str
    column: str = ""
    others: tuple[str, ...] = ()
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class Phrase:
    """A phrase of a column.

    Args:
        text: as it is written in the list.
        words: a pattern for each of its words.
        means: what it means; why it is refused; None if nothing.
    """

    text: str
    words: tuple[re.Pattern[str], ...]
    means: Mapping[str, Any] | str | None

    def fits(self, words: Sequence[str]) -> tuple[float, ...] | None:
        """Return the numbers of a text that begins with this phrase, or None of others."""
        found = [pattern.fullmatch(word) for pattern, word in zip(self.words, words, strict=False)]
        if len(words) < len(self.words) or not all(found):
            return None
        return tuple(float(number) for match in found if match for number in match.groups())


@dataclass(frozen=True, slots=True)
class Column:
    """A column: what it holds, and its phrases if it holds words.

    Args:
        name: its name.
        kind: "text", "count", "number" or "words".
        about: what it says.
        example: a cell.
        is_needed: whether no row is simulated without it.
        prose: what it may hold beside known words and brackets: "" nothing; "words", long ones that are in no phrase;
            "beside", any that is no misspelt one; "alone", that too, and without known words long ones.
        units: what may stand behind a number, and how many of the column's own one is.
        least: the smallest count.
        names: what may stand before a number, beside the column's name, as other tools call it.
        instead: a word that may stand instead of a number.
        silent: words that say as much as no number.
        phrases: the longest first, of these the ones that mean something.
        known: the first phrase of each meaning.
    """

    name: str
    kind: str
    about: str
    example: str
    is_needed: bool = False
    prose: str = ""
    units: Mapping[str, float] = field(default_factory=dict)
    least: int = 1
    names: tuple[str, ...] = ()
    instead: str = ""
    silent: tuple[str, ...] = ()
    phrases: tuple[Phrase, ...] = ()
    known: tuple[str, ...] = ()


@cache
def columns() -> Mapping[str, Column]:
    """Return the columns by name, in the order of a table."""
    return MappingProxyType({name: _column(name, given, listed()) for name, given in listed()["columns"].items()})


@cache
def listed() -> dict[str, Any]:
    """Return what `columns.json` holds; with "of_clusters" and "of_real_runs", the columns of other tables."""
    text = resources.files("minitrain.evidence").joinpath("columns.json").read_text("utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def _column(name: str, given: Mapping[str, Any], listed: Mapping[str, Any]) -> Column:
    """Return a column of the list."""
    means: dict[str, Any] = {}
    words: Mapping[str, Any] = given.get("words", {})
    if given["kind"] == "words":
        for texts, meaning in (*listed["refused"].items(), *listed["everywhere"].items(), *words.items()):
            means |= dict.fromkeys(texts.split("; "), meaning)
        silent = (*listed["silent"], *listed["not_stated"], *given.get("silent", ()))
        means = {**dict.fromkeys(silent), **means}
    phrases = [Phrase(text, tuple(map(_pattern, _words(text))), meaning) for text, meaning in means.items()]
    return Column(
        name,
        given["kind"],
        given["about"],
        given["example"],
        is_needed=given.get("needed", False),
        prose=given.get("prose", ""),
        units=dict(given.get("units", {})),
        least=given.get("least", 1),
        names=(*map(_plain, (name, *given.get("names", ()))),),
        instead=given.get("instead", ""),
        silent=tuple(given.get("silent", ())),
        phrases=tuple(sorted(phrases, key=lambda phrase: (-len(phrase.words), phrase.means is None))),
        known=tuple(
            text.split("; ")[0] for text, meaning in given.get("words", {}).items() if meaning.__class__ is dict
        ),
    )


def _plain(name: str) -> str:
    """Return a name in small letters, with blanks alone between its words."""
    return name.lower().translate(_BLANKS)


def _pattern(word: str) -> re.Pattern[str]:
    """Return a pattern of a word of a phrase, and of its plural."""
    plural = "s?" if len(word) > 3 and word.isalpha() else ""
    return re.compile(re.escape(word).replace(r"\#", _NUMBER) + plural)


def _words(text: str) -> list[str]:
    """Return the words, brackets and arrows of a text.

    >>> _words("ZeRO-3 (FSDP=128, replicated x8)")
    ['zero', '3', '(', 'fsdp=128', 'replicated', 'x8', ')']
    """
    text = _BYTES_A_SECOND.sub("gbyte", text)
    found = _TOKEN.findall(_apart(text.lower()))
    return [word.rstrip(".?") if len(word) > 1 else word for word in found if word.strip(".")]


def _apart(text: str) -> str:
    """Return a text whose hyphens and underscores are blanks, but for arrows."""
    return text.replace("->", "=>").translate(_BLANKS)


def is_not_stated(text: str) -> bool:
    """Return whether a cell says that it says nothing."""
    return not text.strip() or text.strip().lower() in (*listed()["not_stated"], "-", "none")


@lru_cache(maxsize=4096)
def read_words(name: str, text: str) -> Reading:
    """Return what a cell of a column of words says.

    Args:
        name: the column.
        text: the cell.

    Raises:
        ReadingError: a word is not known, has no price here, or contradicts another one.

    Example:
        >>> dict(read_words("precision", "bf16 (fp32 main grads)").facts)
        {'datatype': 'bf16', 'gradient_bytes': 4}
        >>> read_words("attention", "not stated in the paper => unfused").is_guessed
        True
    """
    return _CellReader(columns()[name], text).read()


class _CellReader:
    """Reads a cell, from left to right."""

    def __init__(self, column: Column, text: str) -> None:
        self.column, self.text = column, text
        self.facts: dict[str, Any] = {}
        self.unknown: list[tuple[str, bool]] = []  # words, and whether they are said aside
        self.refused: list[str] = []
        self.is_guessed = self.says_nothing = False

    def read(self) -> Reading:
        words, depth, place = _words(self.text), 0, 0
        self.says_nothing = self._begins_not_stated(words)
        while place < len(words):
            word = words[place]
            if word in _BRACKETS:
                depth, place = max(0, depth + (1 if word in "([" else -1)), place + 1
            elif word in _ARROWS:
                self.is_guessed, self.says_nothing, place = True, False, place + 1
            else:
                place += self._phrase(words, place, is_aside=depth > 0 or self.says_nothing)
        remarks = self._remarks()
        if self.refused:
            raise ReadingError(self.refused[0])
        is_empty = not self.facts and (not words or self._begins_not_stated(words))
        return Reading(MappingProxyType(self.facts), bool(self.facts), is_empty, self.is_guessed, remarks)

    def _begins_not_stated(self, words: Sequence[str]) -> bool:
        text = " ".join(word for word in words)
        return any(text == start or text.startswith(start + " ") for start in _nothing())

    def _phrase(self, words: Sequence[str], place: int, *, is_aside: bool) -> int:
        """Take the longest phrase that begins at a place, and return its words."""
        rest = [word for word in words[place : place + 12] if word not in _BRACKETS]
        key, _, value = rest[0].partition("=")
        if value and key in self.column.silent:  # remat_policy=minimal
            rest[0] = value if self._fitting(rest) is None else rest[0]
        found = self._fitting(rest)
        if found is None:
            self.unknown.append((words[place], is_aside))
            return 1
        self._mean(*found)
        return _span(words, place, len(found[0].words))

    def _fitting(self, words: Sequence[str]) -> tuple[Phrase, tuple[float, ...]] | None:
        """Return the longest phrase that a text begins with, and its numbers."""
        fitting = ((phrase, phrase.fits(words)) for phrase in self.column.phrases)
        return next(((phrase, numbers) for phrase, numbers in fitting if numbers is not None), None)

    def _mean(self, phrase: Phrase, numbers: Sequence[float]) -> None:
        if isinstance(phrase.means, str):
            self.refused.append(f'{self.column.name} has "{phrase.text}": {phrase.means}')
            return
        for key, value in (phrase.means or {}).items():
            if isinstance(value, list):
                self.facts[key] = (*self.facts.get(key, ()), *value)
                continue
            new = numbers[int(value[1:]) - 1] if isinstance(value, str) and value.startswith("#") else value
            if self.facts.setdefault(key, new) != new:
                both = f"which says both {self.facts[key]} and {new}; write one"
                self.refused.append(f"{self.column.name} is {self.text!r:.80}, {both}")

    def _remarks(self) -> tuple[str, ...]:
        """Return what was not read; refuse words that are misspelt, or that had to be known."""
        prose = self.column.prose
        if not self.facts and not self.refused and not self.says_nothing:
            prose = "words" if prose == "alone" else ""
        for word, is_aside in self.unknown:
            nearest, likeness = _nearest(word, self.column)
            is_long = len(word) > 3 and word.isalpha() and likeness < _ALIKE
            is_plain = is_long if prose == "words" else prose != ""
            may_be_remark = is_aside or (is_plain and word not in listed()["turning"])
            if not may_be_remark or _ALIKE <= likeness < 1:
                raise ReadingError(
                    f'{self.column.name} has "{word:.40}", which is not known; nearest is "{nearest}"; known are '
                    f"{_shown(self.column.known)}"
                )
        said = " ".join(word for word, _ in self.unknown)
        return (f'{self.column.name} has "{said:.60}", which is not known: not read',) if said else ()


def _span(words: Sequence[str], place: int, num_words: int) -> int:
    """Return how many entries some words take, brackets among them counted."""
    end = place
    while num_words:
        num_words -= words[end] not in _BRACKETS
        end += 1
    return end - place


@cache
def _nothing() -> tuple[str, ...]:
    return tuple(" ".join(_words(text)) for text in listed()["not_stated"])


def _nearest(word: str, column: Column) -> tuple[str, float]:
    """Return the known phrase, or the word of one, that is most like a word, and how like it is."""
    meant = [phrase.text for phrase in column.phrases if phrase.means or column.prose == "alone"]
    known = {text for phrase in meant for text in (phrase, *_words(phrase)) if len(text) > 1}
    ratios = [(SequenceMatcher(None, word, text).ratio(), text) for text in sorted(known)]
    likeness, text = max(ratios, key=lambda pair: pair[0])
    if text in (word, word.removesuffix("s")):  # it is known beside others alone
        likeness, text = 1.0, min((phrase for phrase in meant if {word, text} & {*_words(phrase)}), key=len)
    return text, likeness if len(word) > 3 else 0.0


def _shown(known: Sequence[str]) -> str:
    more = len(known) - _MOST_SHOWN
    return ", ".join(known[:_MOST_SHOWN]) + (f" and {more} more (minitrain validate --template)" if more > 0 else "")


def read_number(name: str, text: str) -> tuple[float | None, str]:
    """Return the number of a cell, or None where it has none, and what stands in brackets behind it.

    Args:
        name: the column, whose units may follow.
        text: the cell.

    Raises:
        ReadingError: something else stands there.

    Example:
        >>> read_number("seq_len", "4096 tokens"), read_number("vpp", "not stated"), read_number("mbs", "4 (each)")
        ((4096.0, ''), (None, ''), (4.0, '(each)'))
        >>> read_number("seq_len", "8k"), read_number("n_gpus", "1,024 GPUs")
        ((8192.0, ''), (1024.0, ''))
        >>> read_number("tokens_per_s_per_gpu", "7,400 tokens/s/GPU")
        (7400.0, '')
        >>> read_number("vpp", "not stated => assumed 2"), read_number("vocab", "not stated (~50k)")
        ((2.0, 'not stated => assumed 2'), (50000.0, 'not stated (~50k)'))
        >>> read_number("n_micro", "GA 16"), read_number("mbs", "per_device_batch_size=4")
        ((16.0, ''), (4.0, ''))
    """
    said, arrow, guess = _ARROW.sub("=>", text).partition("=>")
    if arrow and is_not_stated(said):
        guessed, _ = read_number(name, guess.strip().removeprefix("assumed").strip())
        return guessed, text.strip()
    start = next((start for start in listed()["not_stated"] if text.strip().lower().startswith(start + " ")), "")
    aside = text.strip()[len(start) :].strip() if start else ""
    if about := _GUESS.fullmatch(aside):
        return read_number(name, about[1])[0], text.strip()
    if start or is_not_stated(text):
        return None, aside
    column = columns().get(name, _ANY_NUMBER)
    if text.strip().lower() in column.silent:
        return None, ""
    named = _NAMED.fullmatch(text.strip())
    found = _COUNTED.fullmatch(named[2] if named and _plain(named[1]) in column.names else text.strip())
    rest, scale = _without_units(column, found.group(2).strip()) if found else (text, 1.0)
    if found is None or (rest and rest[0] not in "([" and (rest[0].isalnum() or not column.prose)):
        raise ReadingError(f"{name} is {text!r:.60}, where {_needed(column)} is needed; remarks go into brackets")
    value = float(found.group(1).replace(",", "")) * scale
    if scale == _BINARY and math.log2(value) % 1:
        raise ReadingError(
            f"{name} is {text!r:.60}, where {_needed(column)} is needed; k is 1024 of a power of 2 alone"
        )
    _require_in_range(column, value, name, text)
    return value, rest


def _without_units(column: Column, rest: str) -> tuple[str, float]:
    """Return what stands behind a number and its units, and how many of the column's own that unit is."""
    scale = 1.0
    while unit := re.match(r"/?[a-z]\w*|%", rest.lower()):
        if unit.group() not in column.units:
            break
        scale, rest = scale * column.units[unit.group()], rest[unit.end() :].strip()
    return rest, scale


_ANY_NUMBER = Column("", "any", "", "")


def _needed(column: Column) -> str:
    units = f", or such with {' or '.join(column.units)}" if column.units else ""
    instead = f', or "{column.instead}",' if column.instead else ""
    return f"a plain number{units}{instead}"


def _require_in_range(column: Column, value: float, name: str, text: str) -> None:
    """Refuse counts that are not whole or too small, and numbers that are not above 0."""
    if column.kind == "count" and (value < column.least or value % 1):  # what is left of infinity is no number
        raise ReadingError(f"{name} is {text!r:.60}, where a whole number of at least {column.least} is needed")
    if column.kind == "number" and not 0 < value < math.inf:
        raise ReadingError(f"{name} is {text!r:.60}, where a number above 0 is needed")


def is_about(size: float, other: float) -> bool:
    """Return whether two sizes of a memory are the same but for what is reserved, and for powers of two and of ten."""
    return abs(size / other - 1) < 0.1


def unknown_columns(names: Sequence[str], known: Collection[str] | None = None) -> tuple[list[str], list[str]]:
    """Return what is wrong with the columns of a table, and which further ones are not read.

    Args:
        names: of its columns.
        known: the columns that such a table may have; the common ones if None.

    Returns:
        A sentence for each name that is like a known one that the table lacks, as if misspelt; and the other names.
    """
    faults, unread, present = [], [], {*names}
    listed = columns() if known is None else known
    for name in names:
        if name in listed:
            continue
        ratios = [(SequenceMatcher(None, name.lower(), each).ratio(), each not in present, each) for each in listed]
        likeness, lacks, nearest = max(ratios)
        if likeness >= _ALIKE and lacks:
            faults.append(f'there is no column "{name:.40}"; nearest is "{nearest}": name it so, or otherwise')
        else:
            unread.append(name)
    return faults, unread


_AXIS = re.compile(
    r"\b(?:ici|dcn)[_ -](data|fsdp|fsdp[_ -]transpose|tensor|expert|context|pipeline)[_ -]parallelism ?[=: ] ?(-?\d+),?"
)
_MESH = re.compile(  # of EasyLM and EasyDeL: replicas, shards, and what else has one part
    r"(?:sharding[_ ]axis[_ ]dims|mesh[_ ]dim)[=: ]*[(\['\"]*(-?\d+), ?(-?\d+)(?:, ?1)+[)\]'\"]*"
)
_COLUMN_OF_AXIS = {"tensor": "tp", "expert": "ep", "context": "cp", "pipeline": "pp"}


def cells_apart(values: Mapping[str, str]) -> Mapping[str, str]:
    """Return a row of which each thing stands in its own column, where one cell says several."""
    return _axes_apart(_shared_apart(_multiplied(values)))


def _axes_apart(values: Mapping[str, str]) -> Mapping[str, str]:
    """Return a row whose axes of MaxText's mesh stand in columns of their own, where `zero` names them.

    Dense weights are sharded along the axis of experts too (`logical_axis_rules` of its `configs/base.yml`: "embed").
    """
    said = _MESH.sub(r"ici_data_parallelism=\1 ici_fsdp_parallelism=\2", (values.get("zero") or "").lower())
    sizes: dict[str, int] = {}
    for axis, size in _AXIS.findall(said):
        name = axis.split("_")[0].split("-")[0].split(" ")[0]
        sizes[name] = -1 if -1 in (int(size), sizes.get(name)) else sizes.get(name, 1) * int(size)
    own = {column: str(sizes[axis]) for axis, column in _COLUMN_OF_AXIS.items() if sizes.get(axis, 1) != 1}
    says_other = any(re.findall(r"\d+", values.get(name) or "") not in ([], [size]) for name, size in own.items())
    if not sizes or "-1" in own.values() or says_other:
        return values
    num_chips = re.sub(r"\D.*", "", (values.get("n_gpus") or "").replace(",", "")) or "0"
    counts_cores = re.search(r"\b(?:tpu ?)?v?7x?\b|ironwood", (values.get("gpu") or "").lower()) is not None
    shards = sizes.get("fsdp", 1) * sizes.get("expert", 1)
    if counts_cores and abs(math.prod(sizes.values())) == 2 * int(num_chips) and shards % 2 == 0:
        shards //= 2  # JAX calls each of a chip's two cores a device
    parts = [] if sizes.get("fsdp", 1) == 1 else ["fsdp"] if shards < 0 else [f"fsdp={shards}"]
    parts += [f"replicated x{sizes['data']}"] if sizes.get("data", 1) > 1 else []
    rest = " ".join(_AXIS.sub("", said).split()).strip(" ,;")
    return {**values, **own, "zero": ", ".join([*parts, *([rest] if rest else [])]) or "0"}


_ROUTED_AND_SHARED = re.compile(r"(\d+)(?: routed)?(?: experts?)? ?(?:\+|\(\+) ?(\d+) shared(?: experts?)?\)?")


def _shared_apart(values: Mapping[str, str]) -> Mapping[str, str]:
    """Return a row whose shared experts stand in their own column, where n_experts is "256 routed + 1 shared"."""
    found = _ROUTED_AND_SHARED.fullmatch((values.get("n_experts") or "").strip().lower())
    if found is None or values.get("n_shared_experts"):
        return values
    return {**values, "n_experts": found[1], "n_shared_experts": found[2]}


def _multiplied(values: Mapping[str, str]) -> Mapping[str, str]:
    """Return a row whose ffn is a number where it is one of the width between layers: 4h, 4x."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?(?:x|[x*]? ?h(?:idden)?)", (values.get("ffn") or "").strip().lower())
    hidden = (values.get("hidden") or "").replace(",", "")
    return {**values, "ffn": f"{float(found[1]) * int(hidden):g}"} if found and hidden.isdigit() else values


def latent_of(text: str, usual: LatentAttention | None) -> LatentAttention | None:
    """Return the latents that a cell of attention names: usual ones but for the sizes that it states.

    Raises:
        ReadingError: it names latents of which sizes are missing, and none are usual.
    """
    facts = read_words("attention", text).facts
    if not facts.get("latent"):
        return usual
    names = [each.name for each in fields(LatentAttention)]
    usually = {} if usual is None else {name: getattr(usual, name) for name in names}
    sizes = usually | {name: int(facts[name]) for name in names if name in facts}
    missing = [_SIZES_OF_LATENTS[name] for name in names if name in _SIZES_OF_LATENTS.keys() - sizes.keys()]
    if missing:
        raise ReadingError(
            f"attention is {text!r}, whose latents are known of shipped models alone (minitrain models); name one in "
            f"model, or add {', '.join(missing)}"
        )
    return LatentAttention(**sizes)


_SIZES_OF_LATENTS = {
    "kv_rank": "kv-lora-rank 512",
    "rope_head_dim": "qk-pos-emb-head-dim 64",
    "nope_head_dim": "qk-head-dim 128",
    "value_head_dim": "v-head-dim 128",
}


def cells_of_model(model: Transformer) -> dict[str, str]:
    """Return what stands in the columns of a model's sizes."""
    sizes = {
        "n_layers": model.num_layers,
        "hidden": model.hidden_size,
        "ffn": model.ffn_hidden_size,
        "n_heads": model.num_heads,
        "n_kv_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "vocab": model.vocab_size,
        "mlp": model.mlp,
        "tied_emb": model.tied_embeddings,
        "n_experts": model.num_experts,
        "n_shared_experts": model.num_shared_experts,
        "n_dense_layers": model.num_layers - len(model.moe_layers),
        "mtp_layers": model.prediction_layers,
    }
    return {column: str(size) for column, size in sizes.items()}


def described() -> str:
    """Return the columns as a list: what each says, and its known words."""
    lines = []
    for column in columns().values():
        known = ", ".join(text.replace("#", "N") for text in column.known)
        lines.append(f"{column.name}: {column.about}{known and f' ({known})'}")
    return "\n".join(lines)


def template() -> str:
    """Return a table to fill in: the columns, and a row of examples."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns())
    writer.writerow(column.example for column in columns().values())
    return out.getvalue()
