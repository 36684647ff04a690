"""Exercise 23: Local SGD: train alone, and meet seldom."""

import minitrain as mt
from minitrain.lib import Model


@mt.local_steps("local_steps")  # says that ranks take so many steps alone before they meet
async def local_sgd(model: Model, local_steps: int) -> Model:
    """Train one round; see 23_local_sgd.md."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    share = model.global_batch_size // (local_steps * model.world_size)

    # TODO
    return model
