"""Strategies that do on a real process what they do not in a simulation; some that are wrong in both; one chain."""

import asyncio
import contextlib
import ctypes
import os
import random
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from minitrain.lib import Model


def is_real(model: Model) -> bool:
    """Return whether rank 1 of a real run asks."""
    return model.rank == 1 and os.environ.get("PYTHONUNBUFFERED") == "1" and model._executor is not None


async def ddp(model: Model, in_between: Callable[[Model], Any] | None = None, order: int = -1) -> Model:
    """Train as ddp does; `in_between` is called between forward and backward."""
    num_layers, weights = model.num_layers, model.weights
    for k in range(num_layers):
        weights[k], model.opt_states[k] = model.load_weights(k)
    model.activations[0] = model.get_input_activation(model.samples_of_rank())
    for k in range(num_layers):
        model.activations[k + 1] = model.forward(k, model.activations[k], weights[k])
    model.grad_activations["one"] = model.loss(model.activations.pop(num_layers))
    if in_between is not None:
        in_between(model)
    for k in reversed(range(num_layers)):
        grads = model.backward(k, model.activations[k], model.grad_activations["one"], weights[k])
        model.grad_weights[k], model.grad_activations["one"] = grads
        del model.activations[k]
    for k in range(num_layers)[::order]:
        model.grad_weights[k] = await model.all_reduce(model.grad_weights[k], k)
        weights[k], model.opt_states[k] = model.update(k, model.grad_weights.pop(k), weights[k], model.opt_states[k])
        model.set_final_weight(k, weights[k])
    return model


def _kill(model: Model) -> None:
    if is_real(model):
        os.kill(os.getpid(), signal.SIGKILL)


def _kill_forker(model: Model) -> None:
    if is_real(model):
        os.kill(os.getppid(), signal.SIGKILL)


def _stop(model: Model) -> None:
    if is_real(model):
        os.kill(os.getpid(), signal.SIGSTOP)


def _exit(model: Model) -> None:
    if is_real(model):
        os._exit(7)


def _leave(model: Model) -> None:
    if is_real(model):
        sys.exit(3)


def _raise(model: Model) -> None:
    if is_real(model):
        raise KeyError("oops")


def _sleep(model: Model) -> None:
    if is_real(model):
        time.sleep(1000)


def _spin(model: Model) -> None:
    while is_real(model):
        pass


def _print(model: Model) -> None:
    if is_real(model):
        for _ in range(5000):
            print("x" * 1000)


async def killed(model: Model) -> Model:
    return await ddp(model, _kill)


async def forker_killed(model: Model) -> Model:
    """Rank 1 kills the process that forks ranks."""
    return await ddp(model, _kill_forker)


async def stops(model: Model) -> Model:
    return await ddp(model, _stop)


async def exits(model: Model) -> Model:
    return await ddp(model, _exit)


async def leaves(model: Model) -> Model:
    return await ddp(model, _leave)


async def raises(model: Model) -> Model:
    return await ddp(model, _raise)


async def sleeps(model: Model) -> Model:
    return await ddp(model, _sleep)


async def spins(model: Model) -> Model:
    return await ddp(model, _spin)


async def prints(model: Model) -> Model:
    return await ddp(model, _print)


async def exits_early(model: Model) -> Model:
    """End as if all were well."""
    return await ddp(model, lambda model: os._exit(0) if is_real(model) else None)


async def aborts(model: Model) -> Model:
    return await ddp(model, lambda model: os.abort() if is_real(model) else None)


async def reads_nowhere(model: Model) -> Model:
    """Read what is not in memory."""
    return await ddp(model, lambda model: ctypes.string_at(0) if is_real(model) else None)


def _close(model: Model) -> None:
    for path in [*Path("/proc/self/fd").iterdir()] if is_real(model) else ():
        with contextlib.suppress(OSError):
            if str(path.readlink()).startswith("socket"):
                os.close(int(path.name))


async def closes_sockets(model: Model) -> Model:
    return await ddp(model, _close)


def _fill(model: Model) -> None:
    if is_real(model):
        import torch

        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**26,) * 2)
        torch.ones(2**26)


async def fills_memory(model: Model) -> Model:
    return await ddp(model, _fill)


async def ends_torch(model: Model) -> Model:
    """End what torch communicates by."""

    def end(model: Model) -> None:
        if is_real(model):
            import torch.distributed as dist

            dist.destroy_process_group()

    return await ddp(model, end)


async def recurses(model: Model) -> Model:
    def again(model: Model) -> None:
        if is_real(model):
            again(model)

    return await ddp(model, again)


async def waits_for_lock(model: Model) -> Model:
    """Wait for what nobody gives back."""
    return await ddp(model, lambda model: waits(threading.Lock()) if is_real(model) else None)


def waits(lock: Any) -> None:
    lock.acquire()
    lock.acquire()


async def waits_for_child(model: Model) -> Model:
    """Start a process that does not end, and wait for it."""
    wait = [sys.executable, "-c", "import time; time.sleep(1000)"]
    return await ddp(model, lambda model: subprocess.run(wait, check=True) if is_real(model) else None)


async def leaves_child(model: Model) -> Model:
    """Start a process that has the rank's pipes too, and die."""

    def fork(model: Model) -> None:
        if is_real(model):
            if os.fork() == 0:
                time.sleep(1000)
            os.kill(os.getpid(), signal.SIGKILL)

    return await ddp(model, fork)


async def lets_nothing_run(model: Model) -> Model:
    """Hold the interpreter's lock: no other thread of the process can answer."""
    return await ddp(model, lambda model: re.match("(a+)+$", "a" * 60 + "b") if is_real(model) else None)


async def asks(model: Model) -> Model:
    """Read what nobody types."""
    return await ddp(model, lambda model: input() if is_real(model) else None)


async def misses_collective(model: Model) -> Model:
    """Leave out a collective that the others take part in."""
    return await _gives(model, [0, 2, 3] if is_real(model) else [0, 1, 2, 3])


async def repeats_collective(model: Model) -> Model:
    return await _gives(model, [0, 1, 1, 2, 3] if is_real(model) else [0, 1, 2, 3])


async def by_chance(model: Model) -> Model:
    """Do what differs between processes."""
    chance = random.Random(os.getpid())
    return await _gives(model, [chance.randrange(4) for _ in range(12)])


async def by_clock(model: Model) -> Model:
    now = time.time_ns() if is_real(model) else 0
    return await _gives(model, [now // 5**k % 4 for k in range(12)])


async def _gives(model: Model, layers: list[int]) -> Model:
    """Give all ranks weights of some layers, which they have, and train."""
    for k in layers:
        weight, _ = model.load_weights(k)
        await model.broadcast(weight, 0, k)
    return await ddp(model)


async def wrong_peer(model: Model) -> Model:
    """Send to oneself's other neighbour."""
    num, other = model.world_size, is_real(model)
    await _sends(model, [(model.rank + (2 if other else 1)) % num], [(model.rank - 1) % num], ["a"], ["a"])
    return await ddp(model)


async def crossed_sends(model: Model) -> Model:
    """Send two messages in another order."""
    peer, tags = (1 - model.rank) % model.world_size, ["a", "b"]
    await _sends(model, [peer, peer], [peer, peer], tags[::-1] if is_real(model) else tags, tags)
    return await ddp(model)


async def wrong_tag(model: Model) -> Model:
    peer = (1 - model.rank) % model.world_size
    await _sends(model, [peer], [peer], ["b" if is_real(model) else "a"], ["a"])
    return await ddp(model)


async def sends_more(model: Model) -> Model:
    """Send a message that nobody expects."""
    peer = (1 - model.rank) % model.world_size
    await _sends(model, [peer] * (1 + is_real(model)), [peer], ["a", "b"], ["a"])
    return await ddp(model)


async def receives_more(model: Model) -> Model:
    """Wait for a message that nobody sends."""
    peer = (1 - model.rank) % model.world_size
    await _sends(model, [peer], [peer] * (1 + is_real(model)), ["a"], ["a", "b"])
    return await ddp(model)


async def _sends(model: Model, to: list[int], of: list[int], tags: list[str], expected: list[str]) -> None:
    """Send this rank's input to some ranks, and receive as many."""
    sent = model.get_input_activation(model.samples_of_rank())
    for peer, tag in zip(to, tags, strict=False):
        await model.send(peer, sent, tag=tag)
    for peer, tag in zip(of, expected, strict=False):
        await model.receive(peer, tag=tag)


async def sends_other(model: Model) -> Model:
    """Send a part of what was sent."""
    peer = (1 - model.rank) % model.world_size
    samples = sorted(model.samples_of_rank())
    await model.send(peer, model.get_input_activation(samples[: len(samples) // (1 + is_real(model))]))
    await model.receive(peer)
    return await ddp(model)


async def reads_file(model: Model) -> Model:
    """Do what a file says, which is named by a relative path."""
    order = [int(word) for word in Path("order.txt").read_text().split()]
    return await _gives(model, order)


async def diverges(model: Model) -> Model:
    """Train with gradients that are no numbers."""

    def spoil(model: Model) -> None:
        if model._executor is not None:
            model.grad_activations["one"]._content.values.fill_(float("nan"))  # type: ignore[attr-defined]

    return await ddp(model, spoil)


async def sleeps_in_loop(model: Model) -> Model:
    if is_real(model):
        await asyncio.sleep(1000)
    return await ddp(model)


async def skips(model: Model) -> Model:
    return model if is_real(model) else await ddp(model)


async def meets_first(model: Model) -> Model:
    if is_real(model):
        await model.barrier()
    return await ddp(model)


async def meets_last(model: Model) -> Model:
    await ddp(model)
    if is_real(model):
        await model.barrier()
    return model


async def swaps(model: Model) -> Model:
    return await ddp(model, order=1 if is_real(model) else -1)


async def returns_nothing(model: Model) -> Model | None:
    await ddp(model)
    return None if is_real(model) else model


async def deadlocks(model: Model) -> Model:
    await model.receive(1 - model.rank)
    return await ddp(model)


async def mismatches(model: Model) -> Model:
    if model.rank == 1:
        await model.barrier()
    return await ddp(model)


async def hands_in_less(model: Model) -> Model:
    """Train as ddp does, and leave it to rank 0 to hand in the first layer."""
    await ddp(model)
    if model.rank:
        del model.final_weights[0]
    return model


async def chained(model: Model) -> Model:
    """Train by hierarchical sums of gradients, each a chain of three launched collectives."""
    mesh = model.mesh(outer=2, inner=model.world_size // 2)
    inner, outer = mesh.group("inner"), mesh.group("outer")
    num_layers, weights, works = model.num_layers, model.weights, {}
    for k in range(num_layers):
        weights[k], model.opt_states[k] = model.load_weights(k)
    model.activations[0] = model.get_input_activation(model.samples_of_rank())
    for k in range(num_layers):
        model.activations[k + 1] = model.forward(k, model.activations[k], weights[k])
    model.grad_activations["one"] = model.loss(model.activations.pop(num_layers))
    for k in reversed(range(num_layers)):
        grads = model.backward(k, model.activations[k], model.grad_activations["one"], weights[k])
        model.grad_weights[k], model.grad_activations["one"] = grads
        del model.activations[k]
        shard = model.launch(model.reduce_scatter(model.grad_weights.pop(k), k, group=inner))
        total = model.launch(model.all_reduce(shard, k, group=outer))
        works[k] = model.launch(model.all_gather(total, k, group=inner))
    for k in range(num_layers):
        grad: Any = await works[k]
        weights[k], model.opt_states[k] = model.update(k, grad, weights[k], model.opt_states[k])
        model.set_final_weight(k, weights[k])
    return model
