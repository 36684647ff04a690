"""The step on one device, written a second time: automatic gradients of the whole model, and textbook optimizers.

It shares nothing with `minitrain.proof.arithmetic` and `minitrain.proof.units` but the problem's data and the order of
a unit's weights, so that an error in either shows. Only the forward pass is written here, as textbooks have it, and not
as parts need it: scores of whole sequences, keys repeated for every head of queries, rotary positions as complex
numbers, every expert on every token. Gradients are autograd's, which follows NumPy's operations back; the tests compare
them with JAX's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import autograd.numpy as anp  # type: ignore[import-untyped]  # NumPy's functions, whose operations are followed
import numpy as np
from autograd import grad
from autograd.tracer import getval  # type: ignore[import-untyped]

from minitrain.engine.semantics import LocalSteps
from minitrain.proof.arithmetic import NEWTON_SCHULZ, Adafactor, Adam, Array, Averaged, Muon
from minitrain.proof.compression import Exchange
from minitrain.proof.problem import Problem, TransformerProblem
from minitrain.workloads.transformer import Transformer
from minitrain.workloads.unit import Unit

_TOKENS = 4096  # how many are computed at once, which bounds the memory


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """Weights and optimizer states after one training step.

    Args:
        weights: by layer, one flat array after the step.
        states: by layer, the optimizer's state after the step, moments x elements.
        own: of each replica, with what weights it goes on, by layer; only where steps are local.
    """

    weights: Sequence[Array]
    states: Sequence[Array]
    own: Sequence[Sequence[Array]] = ()


@lru_cache(maxsize=256)
def reference(problem: Problem, num_layers: int, global_batch_size: int) -> Reference:
    """Return the outcome of one step on a single device over the whole batch."""
    before = _dense_weights(problem, num_layers)
    grads = _dense_gradient(problem, before, global_batch_size, range(global_batch_size))
    steps = [after_step(problem.optimizer, *pair) for pair in zip(before, grads, strict=True)]
    return Reference([weight for weight, _ in steps], [state for _, state in steps])


def _dense_weights(problem: Problem, num_layers: int) -> list[Array]:
    """Return the initial weights of all layers, flat."""
    return [problem.initial_weight(layer).ravel() for layer in range(num_layers)]


def _dense_gradient(problem: Problem, before: list[Array], global_batch_size: int, chosen: range) -> list[Array]:
    """Return the mean of some samples' gradients by layer, flat."""
    weights = [weight.reshape(problem.width, problem.width) for weight in before]
    here = slice(chosen.start, chosen.stop)
    grads = _gradient(weights, problem.inputs(global_batch_size)[here], problem.targets(global_batch_size)[here])
    return [grad.ravel() for grad in grads]


@lru_cache(maxsize=64)
def local_reference(
    problem: Problem | TransformerProblem, num_layers: int, global_batch_size: int, meant: LocalSteps
) -> Reference:
    """Return the outcome of one round of local steps, replica after replica on a single device.

    Douillard et al. 2023, algorithm 1; with the mean as the outer optimizer, Stich 2019, algorithm 1; with fragments,
    Douillard et al. 2025, algorithm 2, whose theta(t - H) is the common weight, as torchft has it. With a delay, the
    gradients are of older weights: Narayanan et al. 2021 (PipeDream-2BW), section 3.1.
    """
    if isinstance(problem, TransformerProblem):
        before = [problem.initial_weight(layer) for layer in range(num_layers)]
    else:
        before = _dense_weights(problem, num_layers)
    return (_in_turn if meant.in_turn else _round)(problem, before, global_batch_size, meant)


def _round(
    problem: Problem | TransformerProblem, before: list[Array], global_batch_size: int, meant: LocalSteps
) -> Reference:
    """Return the outcome of replicas' own steps, after some of which each fragment's outer step follows."""
    num_layers = len(before)
    common, own, share = list(before), [list(before) for _ in range(meant.replicas)], meant.share(global_batch_size)
    history: list[list[list[Array]]] = [[] for _ in own]
    rules = [problem.optimizer_of(layer) for layer in range(num_layers)]
    sent, exchanges, outer = list(before), _exchanges(problem, num_layers, meant), meant.outer
    for step in range(1, meant.steps + 1):
        for replica, weights in enumerate(own):
            first = ((step - 1) * meant.replicas + replica) * share
            chosen = range(first, first + share)
            history[replica].append(_gradient_of(problem, weights, global_batch_size, chosen))
            grads = [list(of_layer) for of_layer in zip(*history[replica], strict=True)]
            own[replica] = [_after_steps(*each) for each in zip(rules, weights, grads, strict=True)]
        for layer in range(num_layers):
            turn = (1 + layer * meant.fragments // num_layers) * (meant.steps // meant.fragments)
            if step == turn - meant.overlap:  # line 6
                moved = [(common[layer] - weights[layer]) / meant.replicas for weights in own]
                sent[layer] = _exchanged(exchanges[layer], moved)
            if step == turn:  # line 10; the momentum was zero before
                common[layer] = common[layer] - outer.rate * (1 + outer.decay) * sent[layer]
                for weights in own:
                    weights[layer] = meant.mixing * weights[layer] + (1 - meant.mixing) * common[layer]
    return Reference(common, [grad[None] for grad in sent], own)


def _gradient_of(
    problem: Problem | TransformerProblem, weights: list[Array], global_batch_size: int, chosen: range
) -> list[Array]:
    """Return the mean of some samples' gradients by layer, flat."""
    if isinstance(problem, TransformerProblem):
        return _mean_gradient(problem, weights, global_batch_size, chosen)
    return _dense_gradient(problem, weights, global_batch_size, chosen)


def _exchanges(problem: Problem | TransformerProblem, num_layers: int, meant: LocalSteps) -> list[Any]:
    """Return how each layer's gradients are exchanged: messages of the elements that train, by shard; () if exactly."""
    found: list[Any] = [[] for _ in range(num_layers)]
    for layer, (mask, shapes) in enumerate(map(problem.trained, range(num_layers if meant.compression else 0))):
        ends = [shard * mask.size // meant.shards for shard in range(meant.shards + 1)]
        for first, last in pairwise(ends):
            here = mask & (np.arange(mask.size) >= first) & (np.arange(mask.size) < last)
            of_shard = shapes if meant.shards == 1 else ((int(here.sum()),),)
            found[layer].append((here, Exchange(meant.compression, layer, of_shard)))  # type: ignore[arg-type]  # not None
    return found


def _exchanged(exchange: list[Any], grads: Sequence[Array]) -> Array:
    """Return the sum of the workers' gradients of a layer, as their messages give it."""
    total = np.sum(grads, axis=0)
    total = np.zeros_like(total) if exchange else total
    for here, messages in exchange:
        total[here] = messages.of([grad[here] for grad in grads])
    return np.asarray(total)


def _in_turn(
    problem: Problem | TransformerProblem, before: list[Array], global_batch_size: int, meant: LocalSteps
) -> Reference:
    """Return the outcome of steps one after the other, whose gradients may be of older weights, or come of messages.

    W(t+1) = W(t) - step of grad f(W(t-delay)), the mean of the workers' gradients as they are exchanged.
    """
    versions, history, exchanges = [before], list[list[Array]](), _exchanges(problem, len(before), meant)
    size = global_batch_size // (meant.steps * meant.workers)
    rules = [problem.optimizer_of(layer) for layer in range(len(before))]
    for step in range(meant.steps):
        old, by_worker = versions[max(0, step - meant.delay)], []
        for share in range(step * meant.workers, (step + 1) * meant.workers):
            grads = _gradient_of(problem, old, global_batch_size, range(share * size, (share + 1) * size))
            by_worker.append([grad / meant.workers for grad in grads])
        history.append([_exchanged(*each) for each in zip(exchanges, zip(*by_worker, strict=True), strict=True)])
        of_layers = [list(grads) for grads in zip(*history, strict=True)]
        versions.append([_after_steps(*each) for each in zip(rules, versions[-1], of_layers, strict=True)])
    seen = [np.stack(weights) for weights in zip(*versions, strict=True)]
    of_each = zip(rules, map(np.stack, of_layers), seen, strict=True)
    return Reference(versions[-1], [_moments(*each) for each in of_each])


def _moments(optimizer: Any, grads: Array, versions: Array) -> Array:
    """Return the optimizer's state after some gradients, the last one last, as sums of them that fade.

    Args:
        optimizer: which.
        grads: steps x elements.
        versions: the weights before the first step, and after each, (1 + steps) x elements.
    """
    if isinstance(optimizer, Averaged):  # the first weights count as if they had been there for ever
        shares = (1 - optimizer.decay) * optimizer.decay ** np.arange(len(grads), -1.0, -1.0)
        shares[0] = optimizer.decay ** len(grads)
        return np.vstack([_moments(optimizer.of, grads, versions), shares @ versions])
    if isinstance(optimizer, Muon):
        found = _moments(optimizer.adam, grads, versions)
        for here, _ in _places(optimizer.matrices):
            found[0, here], found[1, here] = _momentum(optimizer, grads[:, here]), 0
        return found
    if isinstance(optimizer, Adafactor):
        found = np.zeros((1, grads.shape[1]))
        for here, shape in _places(optimizer.weights):
            second = _faded_squares(optimizer, grads[:, here], shape)
            sums = [second.sum(-1), second.sum(-2)] if _saves(shape) else [second]
            kept = np.concatenate([each.ravel() for each in sums])
            found[0, here.start : here.start + kept.size] = kept
        return found
    ago = np.arange(len(grads))[::-1, None]
    if isinstance(optimizer, Adam):
        first = (1 - optimizer.beta1) * (optimizer.beta1**ago * grads).sum(0)
        return np.stack([first, (1 - optimizer.beta2) * (optimizer.beta2**ago * grads**2).sum(0)])
    return np.asarray((optimizer.decay**ago * grads).sum(0)[None])


def _after_steps(optimizer: Any, weights: Array, history: Sequence[Array]) -> Array:
    """Return weights after one more step: with moments as weighted sums of all gradients so far, the last one last."""
    optimizer = getattr(optimizer, "of", optimizer)  # an average takes no part in the step
    ago = np.arange(len(history))[::-1, None]
    grads = np.stack(history)
    if isinstance(optimizer, Muon):
        after = _after_steps(optimizer.adam, weights, history)
        for here, shape in _places(optimizer.matrices):
            ahead = (1 - optimizer.decay) * grads[-1, here] + optimizer.decay * _momentum(optimizer, grads[:, here])
            rate = optimizer.rate * math.sqrt(max(shape[-2], shape[-1]) / shape[-2])
            after[here] = weights[here] - rate * _near_orthogonal(ahead.reshape(shape)).ravel()
        return after
    if isinstance(optimizer, Adafactor):
        after, relative = weights.copy(), min(optimizer.rate, 1 / math.sqrt(len(grads)))
        for here, shape in _places(optimizer.weights):
            second = _faded_squares(optimizer, grads[:, here], shape)
            if _saves(shape):
                rows, columns = second.sum(-1, keepdims=True), second.sum(-2, keepdims=True)
                second = rows * columns / columns.sum(-1, keepdims=True)
            moved = grads[-1, here] / np.sqrt(second).ravel()
            length = max(optimizer.least, _rms(weights[here])) / max(1.0, _rms(moved))
            after[here] = weights[here] - relative * length * moved
        return after
    if isinstance(optimizer, Adam):
        first = (optimizer.beta1**ago * grads).sum(0) / (optimizer.beta1**ago).sum()
        second = (optimizer.beta2**ago * grads**2).sum(0) / (optimizer.beta2**ago).sum()
        return np.asarray(weights - optimizer.rate * first / (np.sqrt(second) + optimizer.epsilon))
    return np.asarray(weights - optimizer.rate * (optimizer.decay**ago * grads).sum(0))


def _places(weights: Sequence[tuple[int, tuple[int, ...]]]) -> list[tuple[slice, tuple[int, ...]]]:
    """Return where weights are, and their shapes."""
    return [(slice(first, first + math.prod(shape)), shape) for first, shape in weights]


def _faded_squares(optimizer: Adafactor, grads: Array, shape: tuple[int, ...]) -> Array:
    """Return the sum of all squares so far, each with its share: 1 - beta of its step, and beta of each since."""
    shares = np.arange(1, len(grads) + 1.0) ** -optimizer.decay
    since = np.append(np.cumprod((1 - shares)[:0:-1])[::-1], 1.0)
    return np.asarray(((shares * since) @ (grads**2 + optimizer.epsilon)).reshape(shape))


def _saves(shape: tuple[int, ...]) -> bool:
    """Return whether a weight has fewer rows and columns than elements."""
    return len(shape) > 1 and sum(shape[-2:]) < math.prod(shape[-2:])


def _rms(values: Array) -> float:
    """Return the root mean square of some numbers."""
    return float(np.linalg.norm(values) / math.sqrt(values.size))


def _momentum(optimizer: Muon, grads: Array) -> Array:
    """Return a momentum after some gradients, the last one last."""
    return np.asarray((1 - optimizer.decay) * optimizer.decay ** np.arange(len(grads))[::-1] @ grads)


def _near_orthogonal(matrices: Array) -> Array:
    """Return what Muon's polynomial makes of the singular values, which is all that its iteration does."""
    left, values, right = np.linalg.svd(matrices, full_matrices=False)
    length = np.sqrt((values**2).sum(-1, keepdims=True))
    values = values / np.where(length > 0, length, 1)
    for _ in range(5):
        values = np.sum([a * values**power for a, power in zip(NEWTON_SCHULZ, (1, 3, 5), strict=True)], axis=0)
    return np.asarray((left * values[..., None, :]) @ right)


def _loss(weights: list[Any], inputs: Any, targets: Any) -> Any:
    """Return the loss of dense layers: the mean over samples of half the squared distance."""
    x = inputs
    for weight in weights:
        x = anp.tanh(x) @ weight
    return anp.sum((x - targets) ** 2) / 2 / len(inputs)


_gradient = grad(_loss)


def after_step(optimizer: Any, weights: Array, grads: Array) -> tuple[Array, Array]:
    """Return weights and state after the optimizer's first step.

    Its state is zero before, so that each moment has one term.
    """
    if isinstance(optimizer, Averaged):
        after, state = after_step(optimizer.of, weights, grads)
        return after, np.vstack([state, after + optimizer.decay * (weights - after)])
    if isinstance(optimizer, Muon | Adafactor):
        return _after_steps(optimizer, weights, [grads]), _moments(optimizer, grads[None], weights[None])
    if isinstance(optimizer, Adam):
        first, second = (1 - optimizer.beta1) * grads, (1 - optimizer.beta2) * grads * grads
        mean, variance = first / (1 - optimizer.beta1), second / (1 - optimizer.beta2)
        return weights - optimizer.rate * mean / (variance**0.5 + optimizer.epsilon), np.stack([first, second])
    return weights - optimizer.rate * grads, grads[None]


Weights = Mapping[str, Any]


@lru_cache(maxsize=64)
def transformer_reference(problem: TransformerProblem, global_batch_size: int) -> Reference:
    """Return the outcome of one step on a single device over the whole batch, by layer."""
    before = [problem.initial_weight(layer) for layer in range(len(problem.units))]
    grads = _mean_gradient(problem, before, global_batch_size, range(global_batch_size))
    rules = map(problem.optimizer_of, range(len(before)))
    steps = [after_step(*each) for each in zip(rules, before, grads, strict=True)]
    return Reference([weight for weight, _ in steps], [state for _, state in steps])


def _mean_gradient(
    problem: TransformerProblem, weights: list[Array], global_batch_size: int, chosen: range
) -> list[Array]:
    """Return the mean of some samples' gradients by layer: some samples at a time, so that memory is bounded."""
    inputs, targets = problem.inputs(global_batch_size), problem.targets(global_batch_size)
    documents = _documents(problem, global_batch_size)
    sums, capacity = [np.zeros_like(weight) for weight in weights], _capacity(problem)
    at_once = max(1, _TOKENS // problem.seq_len)
    for first in range(chosen.start, chosen.stop, at_once):
        here = slice(first, min(first + at_once, chosen.stop))
        grads = _gradient_of_units(weights, inputs[here], targets[here], documents[here], capacity, problem.model)
        sums = [total + grad * len(inputs[here]) for total, grad in zip(sums, grads, strict=True)]
    return _tied(problem.model, [total / len(chosen) for total in sums])


def _tied(model: Transformer, grads: list[Array]) -> list[Array]:
    """Return gradients of which that of a shared table is the sum of both uses, by the chain rule."""
    if model.tied_embeddings and all(weight.is_trained for weight in model.units()[-1].weights):
        size = model.vocab_size * model.hidden_size
        by_head = grads[-1][-size:].reshape(model.hidden_size, model.vocab_size).T  # its last weight
        both = grads[0][:size].reshape(model.vocab_size, model.hidden_size) + by_head  # the embedding's first
        grads[0][:size], grads[-1][-size:] = both.ravel(), both.T.ravel()
    return grads


def _capacity(problem: TransformerProblem) -> int:
    """Return how many tokens of a sample an expert takes: all of them where no more is said."""
    if problem.capacity_factor is None:
        return problem.seq_len
    model = problem.model
    return math.ceil(problem.capacity_factor * problem.seq_len * model.experts_per_token / model.num_experts)


def _documents(problem: TransformerProblem, global_batch_size: int) -> Any:
    """Return the number of each token's document within its sequence, samples x seq_len."""
    documents, found = problem.model.documents, np.zeros((global_batch_size, problem.seq_len), dtype=int)
    for sample in range(global_batch_size if documents is not None else 0):
        first = 0
        for number, length in enumerate(documents.of_sample(sample, problem.seq_len)):  # type: ignore[union-attr]  # not None
            found[sample, first : first + length] = number
            first += length
    return found


def _loss_of_units(
    flat: list[Any], inputs: Any, targets: Any, documents: Any, capacity: int, model: Transformer
) -> Any:
    """Return the mean cross-entropy of all tokens with the next ones."""
    x = inputs
    for unit, numbers in zip(model.units(), flat, strict=True):
        x = _unit(unit, _adapted(_named(unit, numbers), unit, model), x, model, (capacity, documents))
    wanted = np.arange(x.shape[-1]) == targets[..., None]
    shifted = x - getval(x).max(axis=-1, keepdims=True)
    likelihoods = shifted[wanted] - anp.log(anp.sum(anp.exp(shifted), axis=-1)).ravel()
    return -anp.mean(likelihoods)


_gradient_of_units = grad(_loss_of_units)


def _named(unit: Unit, numbers: Any) -> Weights:
    """Return the weights of a unit by name, from one flat array."""
    named, first = {}, 0
    for weight in unit.weights:
        size = math.prod(weight.shape)
        named[weight.name] = numbers[first : first + size].reshape(weight.shape)
        first += size
    return named


def _adapted(w: Weights, unit: Unit, model: Transformer) -> Weights:
    """Return weights of which only those that train have gradients, with what adapters add to matrices (Hu et al.)."""
    lora, is_frozen = model.lora, unit.kind == "embedding" or (unit.layer or 0) < model.frozen_layers
    if lora is None:
        is_frozen = is_frozen and model.frozen_layers > 0 and unit.kind != "head"
        return {name: getval(weight) for name, weight in w.items()} if is_frozen else w
    scale, whole = (lora.alpha or 2 * lora.rank) / lora.rank, dict[str, Any]()
    for name, weight in w.items():
        own = getval(weight)
        a, b = (w.get(f"{name}.lora_{which}") for which in "ab")
        whole[name] = own if a is None else own + scale * a @ b
    return whole


def _unit(unit: Unit, w: Weights, x: Any, model: Transformer, limits: tuple[int, Any]) -> Any:
    """Return the output of a unit; limits are what an expert takes, and the documents that tokens are of."""
    if unit.kind == "embedding":
        found = w["tokens"][x]
        return found + w["positions"][: x.shape[1]] if model.positions == "learned" else found
    normed = _norm(w, x, model.norm)
    if unit.kind == "head":
        return normed @ w["tokens"]
    if unit.kind == "attention":
        return x + (_attention if model.latent is None else _latent_attention)(w, normed, model, limits[1])
    return x + (_mlp(w, normed, model.mlp) if unit.kind == "mlp" else _moe(w, normed, model, limits[0]))


def _norm(w: Weights, x: Any, kind: str) -> Any:
    """Return tokens through a unit's norm."""
    return _scaled(w["norm.weight"], x, kind) + w.get("norm.bias", 0)


def _scaled(weight: Any, x: Any, kind: str) -> Any:
    """Return tokens through a norm without a bias."""
    if kind == "layernorm":
        mean, variance = x.mean(axis=-1, keepdims=True), x.var(axis=-1, keepdims=True)
        return (x - mean) / anp.sqrt(variance + 1e-5) * weight
    return x / anp.sqrt(anp.mean(x**2, axis=-1, keepdims=True) + 1e-5) * weight


def _attention(w: Weights, x: Any, model: Transformer, documents: Any) -> Any:
    """Return the output projection of causal attention."""
    dim, heads = model.head_dim, {}
    for name, num_heads in (("query", model.num_heads), ("key", model.num_kv_heads), ("value", model.num_kv_heads)):
        heads[name] = (x @ w[name] + w.get(f"{name}.bias", 0)).reshape(*x.shape[:2], num_heads, dim)
    if model.positions == "rotary":
        heads.update({name: _rotated(heads[name]) for name in ("query", "key")})
    repeats = model.num_heads // model.num_kv_heads
    keys, values = (anp.repeat(heads[name], repeats, axis=2) for name in ("key", "value"))
    return _mixed(heads["query"], keys, values, model, documents) @ w["output"] + w.get("output.bias", 0)


def _latent_attention(w: Weights, x: Any, model: Transformer, documents: Any) -> Any:
    """Return the output projection of multi-head latent attention, as its paper writes it (equations 37 to 47)."""
    sizes: Any = model.latent
    shape = (*x.shape[:2], model.num_heads, -1)
    latent = x if sizes.query_rank is None else _scaled(w["query_norm.weight"], x @ w["query_down"], model.norm)
    queries = (latent @ w["query" if sizes.query_rank is None else "query_up"]).reshape(shape)
    turned = _rotated(queries[..., sizes.nope_head_dim :])
    queries = anp.concatenate([queries[..., : sizes.nope_head_dim], turned], axis=-1)
    down = x @ w["kv_down"]
    made = (_scaled(w["kv_norm.weight"], down[..., : sizes.kv_rank], model.norm) @ w["kv_up"]).reshape(shape)
    key = _rotated(down[..., None, sizes.kv_rank :])
    rotary = anp.broadcast_to(key, (*made.shape[:3], sizes.rope_head_dim))
    keys = anp.concatenate([made[..., : sizes.nope_head_dim], rotary], axis=-1)
    mixed = _mixed(queries, keys, made[..., sizes.nope_head_dim :], model, documents)
    return mixed @ w["output"] + w.get("output.bias", 0)


def _mixed(queries: Any, keys: Any, values: Any, model: Transformer, documents: Any) -> Any:
    """Return what all heads get from values, concatenated."""
    length = queries.shape[1]
    scores = anp.einsum("bqhd,bkhd->bhqk", queries, keys) / math.sqrt(queries.shape[-1])
    seen = np.tril(np.ones((length, length), dtype=bool))
    if model.window is not None:
        seen &= ~np.tril(np.ones((length, length), dtype=bool), -model.window)
    of_one = documents[:, :, None] == documents[:, None, :]
    shares = _softmax(anp.where(seen & of_one[:, None], scores, -np.inf))
    return anp.einsum("bhqk,bkhd->bqhd", shares, values).reshape(*queries.shape[:2], -1)


def _softmax(x: Any) -> Any:
    """Return probabilities."""
    weights = anp.exp(x - getval(x).max(axis=-1, keepdims=True))
    return weights / anp.sum(weights, axis=-1, keepdims=True)


def _rotated(heads: Any) -> Any:
    """Return queries or keys with their halves, as complex numbers, turned by their positions."""
    half = heads.shape[-1] // 2
    rates = 10000.0 ** (-np.arange(half) / half)
    turns = np.exp(1j * np.arange(heads.shape[1])[:, None] * rates)[None, :, None, :]
    turned = (heads[..., :half] + 1j * heads[..., half:]) * turns
    return anp.concatenate([anp.real(turned), anp.imag(turned)], axis=-1)


def _mlp(w: Weights, x: Any, kind: str, prefix: str = "") -> Any:
    """Return the output of a dense MLP."""
    up = x @ w[f"{prefix}up"] + w.get(f"{prefix}up.bias", 0)
    if kind == "swiglu":
        gate = x @ w[f"{prefix}gate"] + w.get(f"{prefix}gate.bias", 0)
        middle = gate / (1 + anp.exp(-gate)) * up
    else:
        middle = anp.where(getval(up) > 0, up, 0) if kind == "relu" else _gelu(up)
    return middle @ w[f"{prefix}down"] + w.get(f"{prefix}down.bias", 0)


def _gelu(x: Any) -> Any:
    """Return the tanh form of GELU (Hendrycks and Gimpel 2016, section 2)."""
    return x / 2 * (1 + anp.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _moe(w: Weights, x: Any, model: Transformer, capacity: int) -> Any:
    """Return the output of all experts, each multiplied by how much a token wants of it."""
    logits, count = x @ w["router"], model.experts_per_token
    best = np.argsort(-getval(logits + w.get("router.bias", 0)), axis=-1, kind="stable")[..., :count]
    wanted = (best[..., None] == np.arange(model.num_experts)).sum(axis=-2)
    shares = _softmax(logits) * wanted
    if count > 1:
        shares = shares / anp.sum(shares, axis=-1, keepdims=True)
    shares = shares * (np.cumsum(wanted, axis=1) <= capacity)
    total = _mlp(w, x, model.mlp, "shared.") if model.num_shared_experts else 0
    all_experts = {name: anp.expand_dims(weight, _missing(name)) for name, weight in w.items() if "experts." in name}
    outputs = _mlp(all_experts, x, model.mlp, "experts.")  # experts x samples x tokens x hidden_size
    return total + anp.einsum("bte,ebtd->btd", shares, outputs)


def _missing(name: str) -> tuple[int, ...]:
    """Return where a weight of all experts has no dimension for samples, and a bias none for tokens either."""
    return (1, 2) if name.endswith(".bias") else (1,)
