"""05: whole weights have keys of their own, and a helper borrows them."""


async def zero3(model, microbatch_size=None):
    weights, states, acts, act_grads, grads = model.storage()
    me, n = model.rank, model.world_size
    share = model.global_batch_size // n
    mine = range(me * share, (me + 1) * share)
    size = microbatch_size or share

    async def borrow(k):
        weights["whole", k] = await model.all_gather(weights["shard", k], k)
        return weights["whole", k]

    for k in range(model.num_layers):
        weights["shard", k], states[k] = model.load_weights(k, me, n)
    for start in range(0, share, size):
        acts[0] = model.get_input_activation(mine[start : start + size])
        for k in range(model.num_layers):
            acts[k + 1] = model.forward(k, acts[k], await borrow(k))
            del weights["whole", k]
        act_grads[0] = model.loss(acts.pop(model.num_layers))
        for k in range(model.num_layers - 1, -1, -1):
            grads["whole"], act_grads[0] = model.backward(k, acts[k], act_grads[0], await borrow(k))
            del weights["whole", k], acts[k]
            grads["part"] = await model.reduce_scatter(grads.pop("whole"), k)
            grads[k] = grads[k] + grads["part"] if k in grads else grads["part"]
            del grads["part"]
    for k in range(model.num_layers):
        weights["shard", k], states[k] = model.update(k, grads.pop(k), weights["shard", k], states[k])
        model.set_final_weight(k, weights["shard", k])
    return model
