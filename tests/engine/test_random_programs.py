"""Random programs over the `Model` API: they end, in an error of ours or accepted, and accepted means correct.

A program is a list of moves a rank: data parallelism, ZeRO or a pipeline, with some moves removed, doubled, swapped or
put in by chance, illegal ones among them, and parts of it in sub-tasks. While it runs, every tensor has a shadow here,
which knows nothing of minitrain's laws: which samples are summed in it, how often, and which parts it holds. A strict
run may accept a program only if the shadows of its final weights say that every layer was trained once on every sample.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import signal
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minitrain as mt
from minitrain.lib import Activation, ActivationGrad, Model, OptState, Weight, WeightGrad

Move = tuple[Any, ...]
Programs = list[list[Move]]
HARDWARE = mt.FixedPredictor(
    load_weights=1, forward=1, backward=2, update=1, all_reduce=1, all_gather=1, reduce_scatter=1, send=1
)


@dataclasses.dataclass(eq=False)
class Shadow:
    """What a tensor truly holds."""

    layer: int
    parts: frozenset[Fraction]  # starts of pieces of 1/12
    samples: Counter[int] = dataclasses.field(default_factory=Counter)
    step: int = 0
    sound: bool = True
    home: list[bool] = dataclasses.field(default_factory=lambda: [True])  # whether the memory still holds this

    @property
    def usable(self) -> bool:
        return self.sound and self.home[0]


WHOLE = frozenset(Fraction(i, 12) for i in range(12))


def piece(shard: int, num_shards: int) -> frozenset[Fraction]:
    return frozenset(start for start in WHOLE if Fraction(shard, num_shards) <= start < Fraction(shard + 1, num_shards))


class World:
    """What the shadows of all ranks share."""

    def __init__(self, world_size: int, batch: int) -> None:
        self.batch = batch
        self.posts: dict[Any, dict[int, Shadow]] = defaultdict(dict)
        self.places: Counter[Any] = Counter()
        self.mail: dict[Any, deque[Shadow]] = defaultdict(deque)
        self.finals: dict[int, dict[int, Shadow]] = defaultdict(dict)
        self.loot: dict[str, Any] = {}
        self.world_size = world_size

    def trained(self, num_layers: int) -> bool:
        """Return whether every layer was trained, once, on every sample."""
        for layer in range(num_layers):
            found = [*self.finals[layer].values()]
            held: frozenset[Fraction] = frozenset().union(*(shadow.parts for shadow in found)) if found else frozenset()
            if held != WHOLE or any(not s.sound or s.step != 1 or s.layer != layer for s in found):
                return False
        return True


class Rank:
    """One rank that makes its moves."""

    def __init__(self, model: Model, world: World) -> None:
        self.model = model
        self.world = world
        self.tensors: dict[str, Any] = {}
        self.shadows: dict[str, Shadow] = {}
        self.tasks: list[asyncio.Task[None]] = []
        self.works: dict[str, Any] = {}

    async def run(self, moves: list[Move]) -> None:
        for move in moves:
            if move[0] == "return":
                return
            await self.make(move)

    async def make(self, move: Move) -> None:
        """Make one move: `do_x` for ("x", ...), awaited where it must be."""
        result = getattr(self, f"do_{move[0]}")(*move[1:])
        if result is not None:
            await result

    def keep(self, name: str, tensor: Any, shadow: Shadow) -> None:
        """Keep a tensor in its store, and its shadow."""
        stores = dict(
            zip((Weight, OptState, Activation, ActivationGrad, WeightGrad), self.model.storage(), strict=True)
        )
        if type(tensor) in stores:
            store: Any = stores[type(tensor)]
            store[name] = tensor
        self.tensors[name] = tensor
        self.shadows[name] = shadow

    def get(self, name: str) -> tuple[Any, Shadow]:
        return self.tensors.get(name), self.shadows.get(name, Shadow(-1, frozenset(), sound=False))

    def do_load(self, layer: int, shard: int, num_shards: int) -> None:
        weight, state = self.model.load_weights(layer, shard, num_shards)
        self.keep(f"w{layer}", weight, Shadow(layer, piece(shard, num_shards)))
        self.keep(f"o{layer}", state, Shadow(layer, piece(shard, num_shards)))

    def do_input(self, samples: list[int]) -> None:
        tensor = self.model.get_input_activation(samples)
        self.keep("a0", tensor, Shadow(0, frozenset(), Counter(samples)))

    def do_forward(self, layer: int, weight: str) -> None:
        (inp, s), (w, ws) = self.get(f"a{layer}"), self.get(weight)
        out = self.model.forward(layer, inp, w)
        sound = s.usable and ws.usable and ws.parts == WHOLE and (s.layer, ws.layer) == (layer, layer)
        self.keep(f"a{layer + 1}", out, Shadow(layer + 1, frozenset(), s.samples, ws.step, sound))

    def do_loss(self, layer: int) -> None:
        tensor, s = self.get(f"a{layer + 1}")
        self.keep(f"d{layer}", self.model.loss(tensor), Shadow(layer, frozenset(), s.samples, s.step, s.usable))

    def do_backward(self, layer: int, weight: str, name: str) -> None:
        (inp, s), (grad, gs), (w, ws) = self.get(f"a{layer}"), self.get(f"d{layer}"), self.get(weight)
        weight_grad, grad_inp = self.model.backward(layer, inp, grad, w)
        sound = s.usable and gs.usable and ws.usable and s.samples == gs.samples and gs.step == ws.step
        self.keep(name, weight_grad, Shadow(layer, WHOLE, s.samples, ws.step, sound))
        self.keep(f"d{layer - 1}", grad_inp, Shadow(layer - 1, frozenset(), s.samples, ws.step, sound))

    def do_split(self, layer: int, weight: str, name: str) -> None:
        (inp, s), (grad, gs), (w, ws) = self.get(f"a{layer}"), self.get(f"d{layer}"), self.get(weight)
        grad_inp = self.model.backward_input(layer, inp, grad, w)
        sound = s.usable and gs.usable and ws.usable and s.samples == gs.samples and gs.step == ws.step
        self.keep(f"d{layer - 1}", grad_inp, Shadow(layer - 1, frozenset(), s.samples, ws.step, sound))
        weight_grad = self.model.backward_weight(layer, inp, grad)
        self.keep(name, weight_grad, Shadow(layer, WHOLE, s.samples, gs.step, sound))

    def do_add(self, left: str, right: str, name: str) -> None:
        (a, s), (b, t) = self.get(left), self.get(right)
        if isinstance(a, WeightGrad) and isinstance(b, WeightGrad):
            sound = s.usable and t.usable and s.step == t.step and (s.layer, s.parts) == (t.layer, t.parts)
            self.keep(name, a + b, Shadow(s.layer, s.parts, s.samples + t.samples, s.step, sound, s.home))
        elif a is None:
            self.keep(name, b, t)

    def do_shard(self, name: str, shard: int, num_shards: int) -> None:
        tensor, s = self.get(name)
        if hasattr(tensor, "shard"):
            part = tensor.shard(shard, num_shards)
            self.keep(f"{name}/", part, dataclasses.replace(s, parts=piece(shard, num_shards) & s.parts))

    async def do_all_reduce(self, name: str, layer: int) -> None:
        await self.reduce(self.model.all_reduce, name, layer, name)

    async def do_reduce_scatter(self, name: str, layer: int) -> None:
        await self.reduce(self.model.reduce_scatter, name, layer, name)

    async def reduce(self, operation: Any, name: str, layer: int, target: str) -> None:
        tensor, s = self.get(name)
        everyone = self.post(s)
        usable = s.usable
        self.keep(target, await operation(tensor, layer), s)
        if self.world.world_size > 1:
            s.home[0] = False
        shadows = [everyone[rank] for rank in sorted(everyone)]
        total = sum((shadow.samples for shadow in shadows), Counter[int]())
        sound = usable and all(shadow.sound and shadow.layer == s.layer for shadow in shadows)
        parts = s.parts
        if operation == self.model.reduce_scatter and self.world.world_size > 1:
            parts = s.parts & piece(self.model.rank, self.world.world_size)
        self.shadows[target] = Shadow(s.layer, parts, total, s.step, sound)

    async def do_all_gather(self, name: str, layer: int, target: str) -> None:
        tensor, s = self.get(name)
        everyone = self.post(s)
        result = await self.model.all_gather(tensor, layer)
        shadows = list(everyone.values())
        parts = frozenset[Fraction]().union(*(shadow.parts for shadow in shadows))
        sound = all(shadow.usable and (shadow.layer, shadow.step) == (s.layer, s.step) for shadow in shadows)
        self.keep(target, result, Shadow(s.layer, parts, s.samples, s.step, sound))

    def post(self, shadow: Shadow) -> dict[int, Shadow]:
        """Bring a shadow to this rank's next collective, and return what all bring to it."""
        place = self.world.places[self.model.rank]
        self.world.places[self.model.rank] += 1
        self.world.posts[place][self.model.rank] = shadow
        return self.world.posts[place]

    async def do_barrier(self) -> None:
        self.post(Shadow(-1, frozenset()))
        await self.model.barrier()

    async def do_send(self, name: str, dest: int) -> None:
        tensor, s = self.get(name)
        self.world.mail[self.model.rank, dest].append(dataclasses.replace(s, sound=s.usable, home=[True]))
        await self.model.send(dest, tensor)

    async def do_receive(self, source: int, name: str) -> None:
        tensor = await self.model.receive(source)
        mail = self.world.mail[source, self.model.rank]
        self.keep(name, tensor, mail.popleft() if mail else Shadow(-1, frozenset(), sound=False))

    def do_update(self, layer: int, grad: str, weight: str, state: str) -> None:
        (g, gs), (w, ws), (o, os) = self.get(grad), self.get(weight), self.get(state)
        new_weight, new_state = self.model.update(layer, g, w, o)
        every_sample_once = gs.samples == Counter(range(self.world.batch))
        sound = gs.usable and ws.usable and os.usable and every_sample_once and gs.parts >= ws.parts == os.parts
        sound = sound and gs.step == ws.step == os.step and gs.layer == ws.layer == os.layer == layer
        ws.home[0] = os.home[0] = False
        self.keep(f"w{layer}", new_weight, Shadow(layer, ws.parts, step=ws.step + 1, sound=sound))
        self.keep(f"o{layer}", new_state, Shadow(layer, os.parts, step=os.step + 1, sound=sound))

    def do_final(self, layer: int, name: str) -> None:
        tensor, s = self.get(name)
        self.model.set_final_weight(layer, tensor)
        self.world.finals[layer][self.model.rank] = dataclasses.replace(s, sound=s.usable)

    def do_forge(self, name: str, how: str) -> None:
        """Make a tensor without an operation: by hand, as a copy, by an altered field, or another rank's."""
        tensor, s = self.get(name)
        if tensor is None:
            return
        total = frozenset(range(self.world.batch))
        if how == "hand":
            layer, layers = max(s.layer, 0), self.model.num_layers
            forged: Any = WeightGrad(layer, layers, total, self.world.batch)
        elif how == "alter":
            field = "samples" if hasattr(tensor, "samples") else "step"
            setattr(tensor, field, total if field == "samples" else 1)
            forged = tensor
        elif how == "replace":
            forged = dataclasses.replace(tensor)
        elif how == "copy":
            forged = copy.copy(tensor)
        else:
            forged = self.world.loot.setdefault(name, tensor)
        self.keep(name, forged, dataclasses.replace(s, sound=s.sound and forged is tensor and how != "alter"))

    async def do_task(self, moves: list[Move]) -> None:
        self.tasks.append(asyncio.create_task(self.run(moves)))
        await asyncio.sleep(0)

    async def do_join(self) -> None:
        tasks, self.tasks = self.tasks, []
        await asyncio.gather(*(task for task in tasks if task is not asyncio.current_task()))

    async def do_group(self, moves: list[Move]) -> None:
        async with asyncio.TaskGroup() as group:
            for move in moves:
                group.create_task(self.make(move))

    async def do_shield(self, move: Move) -> None:
        await asyncio.shield(self.make(move))

    async def do_sleep(self) -> None:
        await asyncio.sleep(0)

    def do_lag(self) -> None:
        self.model.time += 1.0

    async def do_raw(self, name: str) -> None:
        tensor, s = self.get(name)
        everyone = self.post(s)
        result, _ = await self.model.dist.all_reduce(self.model.rank, tensor, 0)
        everyone.clear()
        alone = self.world.world_size == 1  # then nothing happens
        self.keep(name, result, s if alone else dataclasses.replace(s, sound=False))


def data_parallel(num_ranks: int, num_layers: int, batch: int, draw: Any) -> Programs:
    """Return data parallelism, gradients reduced or scattered, weights whole or in shards."""
    stage = draw(st.sampled_from([0, 1, 3]))
    split = draw(st.booleans())
    size = batch // num_ranks
    programs = []
    for rank in range(num_ranks):
        moves: list[Move] = []
        shards = (rank, num_ranks) if stage == 3 else (0, 1)
        moves += [("load", layer, *shards) for layer in range(num_layers)]
        for i, sample in enumerate(range(rank * size, (rank + 1) * size)):
            moves += one_pass(num_layers, [sample], i, gathered=stage == 3, split=split)
        for layer in range(num_layers):
            moves += end_of_step(stage, layer, rank, num_ranks)
        programs.append(moves)
    return programs


def one_pass(num_layers: int, samples: list[int], i: int, *, gathered: bool, split: bool) -> list[Move]:
    """Return the moves of one microbatch."""
    moves: list[Move] = [("input", samples)]

    def weight(layer: int) -> str:
        if gathered:
            moves.append(("all_gather", f"w{layer}", layer, "full"))
        return "full" if gathered else f"w{layer}"

    for layer in range(num_layers):
        moves.append(("forward", layer, weight(layer)))
    moves.append(("loss", num_layers - 1))
    for layer in reversed(range(num_layers)):
        moves.append(("split" if split else "backward", layer, weight(layer), "new"))
        moves.append(("add", f"g{layer}", "new", f"g{layer}"))
    return moves


def end_of_step(stage: int, layer: int, rank: int, num_ranks: int) -> list[Move]:
    """Return the moves from the gradient of a layer to its final weight."""
    if stage == 0:
        moves: list[Move] = [("all_reduce", f"g{layer}", layer)]
        return [*moves, ("update", layer, f"g{layer}", f"w{layer}", f"o{layer}"), ("final", layer, f"w{layer}")]
    moves = [("reduce_scatter", f"g{layer}", layer)]
    weight, state = f"w{layer}", f"o{layer}"
    if stage == 1:
        moves += [("shard", weight, rank, num_ranks), ("shard", state, rank, num_ranks)]
        weight, state = f"{weight}/", f"{state}/"
    return [*moves, ("update", layer, f"g{layer}", weight, state), ("final", layer, f"w{layer}")]


def pipeline(num_ranks: int, num_layers: int, batch: int, draw: Any) -> Programs:
    """Return a pipeline of one layer a rank, its microbatches one after the other or all at once."""
    together = draw(st.booleans())
    batches = [list(range(batch))] if together else [[sample] for sample in range(batch)]
    programs = []
    for rank in range(num_ranks):
        moves: list[Move] = [("load", rank, 0, 1)]
        for samples in batches:
            moves.append(("input", samples) if rank == 0 else ("receive", rank - 1, f"a{rank}"))
            moves.append(("forward", rank, f"w{rank}"))
            last = rank == num_ranks - 1
            moves += [("loss", rank)] if last else [("send", f"a{rank + 1}", rank + 1)]
            moves += [] if last else [("receive", rank + 1, f"d{rank}")]
            moves.append(("backward", rank, f"w{rank}", "new"))
            moves += [("send", f"d{rank - 1}", rank - 1)] if rank else []
            moves.append(("add", f"g{rank}", "new", f"g{rank}"))
        moves += [("update", rank, f"g{rank}", f"w{rank}", f"o{rank}"), ("final", rank, f"w{rank}")]
        programs.append(moves)
    return programs


NAMES = ["w0", "w1", "g0", "g1", "o0", "a0", "a1", "d0", "new", "full", "w0/"]


def wild(draw: Any, num_ranks: int) -> Move:
    """Return any move, most likely an illegal one."""
    name, rank, layer = st.sampled_from(NAMES), st.integers(0, num_ranks - 1), st.integers(0, 1)
    plain = st.one_of(
        st.tuples(st.just("forge"), name, st.sampled_from(["hand", "alter", "replace", "copy", "steal"])),
        st.tuples(st.just("all_reduce"), name, layer),
        st.tuples(st.just("all_gather"), name, layer, name),
        st.tuples(st.just("send"), name, rank),
        st.tuples(st.just("receive"), rank, name),
        st.tuples(st.just("add"), name, name, name),
        st.tuples(st.just("shard"), name, st.integers(0, 2), st.integers(1, 3)),
        st.tuples(st.just("update"), layer, name, name, name),
        st.tuples(st.just("final"), layer, name),
        st.tuples(st.just("load"), layer, st.integers(0, 2), st.integers(1, 3)),
        st.tuples(st.just("input"), st.lists(st.integers(0, 4), max_size=3)),
        st.tuples(st.just("forward"), layer, name),
        st.tuples(st.just("raw"), name),
        st.sampled_from([("barrier",), ("return",), ("sleep",), ("lag",), ("join",)]),
    )
    move: Move = draw(plain)
    nested = draw(st.sampled_from(["no", "no", "task", "group", "shield"]))
    if move[0] == "return" or nested == "no":
        return move
    return (nested, move) if nested == "shield" else (nested, [move])


@st.composite
def programs(draw: Any) -> tuple[Programs, int, int]:
    """Return a program a rank, the number of layers, and the batch."""
    num_ranks = draw(st.sampled_from([1, 2, 2, 3]))
    kind = draw(st.sampled_from([data_parallel, pipeline]))
    num_layers = num_ranks if kind is pipeline else draw(st.integers(1, 2))
    batch = draw(st.sampled_from([num_ranks, 2 * num_ranks]))
    moves = kind(num_ranks, num_layers, batch, draw)
    for _ in range(draw(st.integers(0, 3))):
        mutate(draw, draw(st.sampled_from(moves)), num_ranks)
    if draw(st.booleans()):  # all of it in a sub-task
        moves = [[("task", part), ("join",)] for part in moves]
    return moves, num_layers, batch


def mutate(draw: Any, moves: list[Move], num_ranks: int) -> None:
    """Change one thing about a rank's moves."""
    place = draw(st.integers(0, len(moves)))
    change = draw(st.sampled_from(["insert", "insert", "remove", "double", "swap", "task", "end"]))
    if change == "insert" or not moves:
        moves.insert(place, wild(draw, num_ranks))
    elif change == "end":
        moves.append(wild(draw, num_ranks))
    else:
        place = min(place, len(moves) - 1)
        other = draw(st.integers(0, len(moves) - 1))
        if change == "remove":
            del moves[place]
        elif change == "double":
            moves.insert(other, moves[place])
        elif change == "swap":
            moves[place], moves[other] = moves[other], moves[place]
        else:
            moves[place] = "task", [moves[place]]


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """Raise a TimeoutError in what takes longer."""

    def ring(*_: Any) -> None:
        raise TimeoutError("the program hangs")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def outcome(moves: Programs, num_layers: int, batch: int, *, strict: bool = True) -> tuple[mt.Run | None, World]:
    """Run a program; return the run if it was accepted, and what is true."""
    world = World(len(moves), batch)

    async def strategy(model: Model) -> Model:
        rank = Rank(model, world)
        await rank.run(moves[model.rank])
        await rank.do_join()
        return model

    try:
        with at_most(10):
            run = mt.simulate(
                strategy,
                world_size=len(moves),
                num_layers=num_layers,
                global_batch_size=batch,
                hardware=HARDWARE,
                strict=strict,
            )
    except mt.MinitrainError:
        return None, world
    except BaseExceptionGroup as group:  # of a TaskGroup in the strategy, which passes unchanged
        if group.split(mt.MinitrainError)[1] is not None:
            raise
        return None, world
    return run, world


@pytest.mark.no_cover  # that of the next test goes through the same lines
@settings(max_examples=8 * settings().max_examples)
@given(programs())
def test_a_program_ends_in_an_error_of_ours_or_has_trained_the_model(program: tuple[Programs, int, int]) -> None:
    run, world = outcome(*program)
    assert run is None or world.trained(program[1])


@settings(max_examples=3 * settings().max_examples)
@given(programs())
def test_no_program_hangs_or_breaks_what_is_not_strict(program: tuple[Programs, int, int]) -> None:
    outcome(*program, strict=False)


@settings(max_examples=2 * settings().max_examples)
@given(st.data())
def test_an_unchanged_program_is_accepted_and_has_trained_the_model(data: Any) -> None:
    num_ranks = data.draw(st.integers(1, 3))
    kind = data.draw(st.sampled_from([data_parallel, pipeline]))
    num_layers = num_ranks if kind is pipeline else data.draw(st.integers(1, 2))
    moves = kind(num_ranks, num_layers, 2 * num_ranks, data.draw)
    run, world = outcome(moves, num_layers, 2 * num_ranks)
    assert run is not None
    assert world.trained(num_layers)
