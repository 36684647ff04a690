"""02: all gradients are summed in one operation."""


async def ddp(model):
    w, o, a, ga, gw = model.storage()
    n = model.global_batch_size // model.world_size
    a["x", 0] = model.get_input_activation([*range(n * model.rank, n * (model.rank + 1))])
    for k in range(model.num_layers):
        w["w", k], o["o", k] = model.load_weights(k)
    for k in range(model.num_layers):
        a["x", k + 1] = model.forward(k, a["x", k], w["w", k])
    ga["dy"] = model.loss(a.pop(("x", model.num_layers)))
    for k in range(model.num_layers - 1, -1, -1):
        gw["dw", k], ga["dy"] = model.backward(k, a["x", k], ga["dy"], w["w", k])
        a.pop(("x", k))
    del ga["dy"]
    for grad in await model.all_reduce(list(gw.values()), 0):
        k = grad.layer
        w["w", k], o["o", k] = model.update(k, grad, w["w", k], o["o", k])
        model.set_final_weight(k, w["w", k])
    return model
