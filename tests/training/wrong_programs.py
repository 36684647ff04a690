"""Strategies that do on a real process what they do not in a simulation; some that are wrong in both; one chain."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from minitrain.lib import Model


def is_real(model: Model) -> bool:
    """Return whether rank 1 of a real run asks."""
    return model.rank == 1 and os.environ.get("PYTHONUNBUFFERED") == "1" and model._executor is not None


async def ddp(model: Model, in_between: Callable[[Model], None] | None = None, order: int = -1) -> Model:
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


async def has_tasks(model: Model) -> Model:
    await asyncio.gather(model.barrier())
    return await ddp(model)


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
