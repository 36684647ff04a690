"""07: backwards take the microbatches in reverse."""


async def gpipe(model, microbatch_size):
    weights, states, acts, act_grads, grads = model.storage()
    stage, last = model.rank, model.world_size - 1
    per_stage = model.num_layers // model.world_size
    first = stage * per_stage
    end = first + per_stage
    k = first
    while k < end:
        weights[k], states[k] = model.load_weights(k)
        k += 1
    count = -(-model.global_batch_size // microbatch_size)
    for i in range(count):
        samples = range(i * microbatch_size, min((i + 1) * microbatch_size, model.global_batch_size))
        acts[i, first] = model.get_input_activation(samples) if stage == 0 else await model.receive(stage - 1)
        for k in range(first, end):
            acts[i, k + 1] = model.forward(k, acts[i, k], weights[k])
        if stage < last:
            await model.send(stage + 1, acts.pop((i, end)))
    for i in reversed(range(count)):
        act_grads[i] = model.loss(acts.pop((i, end))) if stage == last else await model.receive(stage + 1)
        for k in reversed(range(first, end)):
            new, act_grads[i] = model.backward(k, acts[i, k], act_grads[i], weights[k])
            del acts[i, k]
            grads[k] = grads[k] + new if k in grads else new
            del new
        if stage:
            await model.send(stage - 1, act_grads[i])
        del act_grads[i]
    for k in range(first, end):
        weights[k], states[k] = model.update(k, grads.pop(k), weights[k], states[k])
        model.set_final_weight(k, weights[k])
    return model
