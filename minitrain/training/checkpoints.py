"""Checkpoints of a real run: a folder for each step, written by torch.distributed.checkpoint.

Each rank writes the pieces of weights and optimizer states that it holds, by layer and the elements that they are of.
So a run may go on with another strategy or another number of ranks: each rank reads what it needs from wherever the
pieces lie. A folder counts once it has its last file, which says the step: a run that is killed while it writes goes on
from the folder before.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated, Any

import torch
import torch.distributed as dist
from annotated_types import Ge

from minitrain.errors import UsageError
from minitrain.files import conforming, read_json, write_text
from minitrain.training.contents import Flat, put_together
from minitrain.training.layers import Net
from minitrain.training.program import RankProgram

_LAST_FILE = "minitrain.json"
_NUMBER = re.compile(r"\d+")
_PIECE = re.compile(r"(weight|state)\.(\w+)\.(\d+)-(\d+)")


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Where the state of a run is kept.

    Args:
        folder: of all checkpoints.
        every: after how many steps one is written; the last step's always is.
        facts: what a run must have in common with the one that it goes on from: workload, layers, batch ...
        keep_latest_k: how many are kept; all of them if 0.
    """

    folder: Path
    every: int
    facts: Mapping[str, Any]
    keep_latest_k: int = 10

    def is_due(self, num_steps: int, last: int) -> bool:
        """Return whether the state after so many steps is to be written."""
        return num_steps % self.every == 0 or num_steps == last

    def require_writable(self) -> None:
        """Require a folder that can be written, before the training that is to fill it begins.

        Raises:
            UsageError: it cannot.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            TemporaryFile(dir=self.folder).close()
        except OSError as error:
            raise UsageError(
                f"checkpoints cannot be written into {self.folder}: {error.strerror}; give another folder"
            ) from None

    def newest(self) -> tuple[int, Path] | None:
        """Return the number of steps of the newest checkpoint that is whole, and its folder.

        Raises:
            UsageError: it is of another run.
        """
        whole = []
        for path in self.folder.glob(f"step-*/{_LAST_FILE}"):
            try:
                facts = read_json(path, dict[str, Any])
                whole.append((conforming(facts.pop("steps", None), Annotated[int, Ge(0)]), path.parent, facts))
            except (OSError, ValueError) as error:
                raise _unreadable(path.parent, error) from error
        if not whole:
            return None
        steps, folder, facts = max(whole, key=lambda found: found[0])
        wanted = json.loads(json.dumps(dict(self.facts)))
        differ = [
            f"{name} {facts.get(name)!r} there and {value!r} here"
            for name, value in wanted.items()
            if facts.get(name) != value
        ]
        if differ:
            raise UsageError(
                f"the checkpoint {folder} is of another run ({'; '.join(differ)}); give another folder, or the same "
                "parameters"
            )
        return steps, folder

    def save(self, num_steps: int, carried: Mapping[int | str, tuple[Flat, Flat]], rank: int) -> None:
        """Write the state after so many steps, and remove what is no longer to be kept; all ranks call it.

        Raises:
            UsageError: it cannot be written; then nothing of it stays.
        """
        from torch.distributed.checkpoint.state_dict_saver import save  # noqa: PLC0415  (takes half a second)

        folder = self.folder / f"step-{num_steps:08d}"
        if rank == 0:
            shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed while it wrote
        dist.barrier()
        state = {
            f"{name}.{layer}.{first}-{last}": values.contiguous()
            for layer, contents in carried.items()
            for name, content in zip(("weight", "state"), contents, strict=True)
            for (first, last), values in _cut(content)
        }
        with _telling(folder), _without_warnings():
            save(state, checkpoint_id=folder)
        dist.barrier()
        if rank == 0:
            text = json.dumps({"steps": num_steps, **self.facts}, indent=2)
            with _telling(folder):
                write_text(folder / _LAST_FILE, [text, "\n"])
            whole = sorted(self.folder.glob(f"step-*/{_LAST_FILE}"))
            for last_file in whole[: -self.keep_latest_k] if self.keep_latest_k else ():
                last_file.unlink()  # first, so that it is never taken for whole
                shutil.rmtree(last_file.parent, ignore_errors=True)

    def latest(self, program: RankProgram, net: Net) -> tuple[dict[int | str, tuple[Flat, Flat]], int]:
        """Return the state of the newest checkpoint as far as a rank needs it, and its number of steps.

        Raises:
            UsageError: it is of another run.
        """
        newest = self.newest()
        if newest is None:
            return {}, 0
        steps, folder = newest
        with _telling_what_cannot_be_read(folder):
            state = _read(folder, program.layers)
        state = {key: values.to(net.device) for key, values in state.items()}
        layers = _layers_of(state)
        return {layer: _whole(layer, state) for layer in layers}, steps


def read_checkpoint(folder: Path) -> dict[int | str, tuple[torch.Tensor, torch.Tensor]]:
    """Return the whole weight (flat) and optimizer state (moments x elements) of each layer of one checkpoint.

    A part of a layer is there under a name of its own, such as "3part0of2", "3router" or "3experts1of2".

    Args:
        folder: of one step, such as checkpoints/step-00000100.
    """
    state = _read(folder, None)
    whole = {layer: _whole(layer, state) for layer in _layers_of(state)}
    return {layer: (weight.values, moments.values) for layer, (weight, moments) in whole.items()}


def _layers_of(state: Mapping[str, Any]) -> list[int | str]:
    """Return the layers that some keys are of, and the names of parts of layers."""
    found = {key.split(".")[1] for key in state}
    return [int(name) if name.isdigit() else name for name in sorted(found, key=lambda name: (len(name), name))]


def _read(folder: Path, layers: set[int] | None) -> dict[str, torch.Tensor]:
    """Return pieces that cover some layers of a checkpoint, or all."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader  # noqa: PLC0415
    from torch.distributed.checkpoint.state_dict_loader import load  # noqa: PLC0415

    found: dict[tuple[str, str], list[tuple[int, int]]] = {}
    metadata = FileSystemReader(folder).read_metadata().state_dict_metadata
    for key in metadata:
        name, layer, first, last = _PIECE.fullmatch(key).groups()  # type: ignore[union-attr]  # `save` wrote it
        if layers is None or int(_NUMBER.match(layer)[0]) in layers:  # type: ignore[index]  # as above
            found.setdefault((name, layer), []).append((int(first), int(last)))
    keys = [
        f"{name}.{layer}.{first}-{last}"
        for (name, layer), pieces in found.items()
        for first, last in _without_overlap(pieces)
    ]
    state = {key: torch.empty(metadata[key].size, dtype=metadata[key].properties.dtype) for key in keys}  # type: ignore[union-attr]  # all are tensors
    with _without_warnings():
        load(state, checkpoint_id=folder)
    return state


def _without_overlap(pieces: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield pieces that cover a layer, each element once."""
    end = 0
    for first, last in sorted(pieces, key=lambda piece: (piece[0], -piece[1])):
        if first >= end:
            yield first, last
            end = last


def _whole(layer: int | str, state: Mapping[str, torch.Tensor]) -> tuple[Flat, Flat]:
    """Return a layer's weight and its optimizer state, put together; the state is of what is trained, the last."""
    found: dict[str, list[Flat]] = {"weight": [], "state": []}
    for key, values in state.items():
        kind, number, first, last = _PIECE.fullmatch(key).groups()  # type: ignore[union-attr]
        if number == str(layer):
            piece = [(int(first), int(last))]
            found[kind].append(Flat(values, piece, piece))
    weight = put_together(found["weight"])
    size = weight.pieces[-1][1]
    moments = put_together(found["state"]) if found["state"] else Flat(weight.values.new_empty(0, 0), [], [])
    frozen = moments.pieces[0][0] if moments.pieces else size
    regions = [(0, frozen), (frozen, size)] if frozen else [(0, size)]
    return Flat.whole(weight.values, regions), Flat.whole(moments.values, regions[-1:])


def _cut(content: Flat) -> Iterator[tuple[tuple[int, int], torch.Tensor]]:
    """Yield the pieces of a content."""
    sizes = [last - first for first, last in content.pieces]
    if not sizes:
        return
    yield from zip(content.pieces, content.values.split(sizes, -1), strict=True)


@contextlib.contextmanager
def _telling(folder: Path) -> Iterator[None]:
    """Remove what was written of a checkpoint that cannot be written, and say why that is, on all ranks."""
    from torch.distributed.checkpoint.api import CheckpointException  # noqa: PLC0415  (as in `save`)

    try:
        yield
    except (OSError, CheckpointException) as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise UsageError(
            f"the checkpoint {folder} cannot be written: {_why(error)}; give a folder that can be written and has room"
        ) from None


@contextlib.contextmanager
def _telling_what_cannot_be_read(folder: Path) -> Iterator[None]:
    """Say of a damaged checkpoint that it is one: torch finds that in many ways, as its files are pickled."""
    from torch.distributed.checkpoint.api import CheckpointException  # noqa: PLC0415  (as in `save`)

    try:
        yield
    except MemoryError:
        raise
    except (Exception, CheckpointException) as error:
        raise _unreadable(folder, error) from None


def _unreadable(folder: Path, error: BaseException) -> UsageError:
    """Return the error for a checkpoint that cannot be read: one that the system keeps from us may well be whole."""
    is_kept = any(isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError) for cause in _causes(error))
    remedy = "make it readable, or give another folder" if is_kept else "remove it"
    return UsageError(f"the checkpoint {folder} cannot be read: {_why(error)}; {remedy}")


def _causes(error: BaseException) -> list[BaseException]:
    """Return the errors of ranks that torch gathered, or the error itself."""
    return [cause for cause, _ in getattr(error, "failures", {}).values()] or [error]


def _why(error: BaseException) -> str:
    """Return why a checkpoint failed in words: what the system says, or else the first error of a rank."""
    causes = _causes(error)
    told = "; ".join(sorted({cause.strerror or str(cause) for cause in causes if isinstance(cause, OSError)}))
    return told or f"{type(causes[0]).__name__} {causes[0]!s:.200}".strip()


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Keep quiet what torch says of its own modules."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
