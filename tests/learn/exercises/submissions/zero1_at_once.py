"""03: each layer is reduced, updated and gathered on the way back of the last microbatch."""


async def zero1(model, microbatch_size=None):
    weights, states, acts, act_grads, grads = model.storage()
    me, n = model.rank, model.world_size
    mine = [s for s in range(model.global_batch_size) if s % n == me]
    size = microbatch_size or len(mine)
    batches = [mine[i : i + size] for i in range(0, len(mine), size)]
    for k in range(model.num_layers):
        weights[k], state = model.load_weights(k)
        states[k] = state.shard(me, n)
        del state
    for batch in batches:
        acts[0] = model.get_input_activation(batch)
        for k in range(model.num_layers):
            acts[k + 1] = model.forward(k, acts[k], weights[k])
        act_grads[0] = model.loss(acts.pop(model.num_layers))
        for k in reversed(range(model.num_layers)):
            new, act_grads[0] = model.backward(k, acts[k], act_grads[0], weights[k])
            del acts[k]
            grads[k] = grads[k] + new if k in grads else new
            del new
            if batch is batches[-1]:
                shard = await model.reduce_scatter(grads.pop(k), k)
                weights[k], states[k] = model.update(k, shard, weights[k].shard(me, n), states[k])
                weights[k] = await model.all_gather(weights[k], k)
                model.set_final_weight(k, weights[k])
    return model
