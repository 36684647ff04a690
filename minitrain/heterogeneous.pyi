from minitrain.machine.heterogeneous import *  # noqa: F403
