"""00: helper functions, a class, and keys that are text."""

from dataclasses import dataclass


@dataclass
class Trainer:
    model: object

    def up(self, layer):
        model = self.model
        model.activations[f"in {layer + 1}"] = model.forward(
            layer, model.activations[f"in {layer}"], model.weights[str(layer)]
        )

    def down(self, layer):
        model = self.model
        inp, grad = model.activations[f"in {layer}"], model.grad_activations.pop("out")
        model.grad_activations["out"] = grad
        model.grad_weights[layer], model.grad_activations["out"] = model.backward(
            layer, inp, grad, model.weights[str(layer)]
        )
        model.activations.pop(f"in {layer}")

    def step(self, layer):
        model = self.model
        new = model.update(
            layer, model.grad_weights.pop(layer), model.weights.pop(str(layer)), model.opt_states.pop(layer)
        )
        model.set_final_weight(layer, new[0])


async def one_device(model):
    trainer = Trainer(model)
    for layer in range(model.num_layers):
        model.weights[str(layer)], model.opt_states[layer] = model.load_weights(layer)
    model.activations["in 0"] = model.get_input_activation(range(model.global_batch_size))
    [trainer.up(layer) for layer in range(model.num_layers)]
    model.grad_activations["out"] = model.loss(model.activations.pop(f"in {model.num_layers}"))
    for layer in sorted(range(model.num_layers), reverse=True):
        trainer.down(layer)
    for layer in range(model.num_layers):
        trainer.step(layer)
    return model
