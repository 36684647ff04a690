# fails: laws: forbids reduce_scatter
"""Its two halves, as collectives."""

from minitrain.lib import Model


async def ring_ddp(model: Model) -> Model:
    """Train data parallel."""
    weights, opt_states, activations, grad_activations, grads = model.storage()
    share = model.global_batch_size // model.world_size
    for k in range(model.num_layers):
        weights[k], opt_states[k] = model.load_weights(k)
    activations[0] = model.get_input_activation(range(model.rank * share, (model.rank + 1) * share))
    for k in range(model.num_layers):
        activations[k + 1] = model.forward(k, activations[k], weights[k])
    grad_activations["out"] = model.loss(activations.pop(model.num_layers))
    for k in reversed(range(model.num_layers)):
        grads[k], grad_activations["out"] = model.backward(k, activations[k], grad_activations["out"], weights[k])
        del activations[k]
        grads[k] = await model.all_gather(await model.reduce_scatter(grads[k], k), k)
        weights[k], opt_states[k] = model.update(k, grads.pop(k), weights[k], opt_states[k])
        model.set_final_weight(k, weights[k])
    return model
