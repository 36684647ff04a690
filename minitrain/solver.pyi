from minitrain.machine.solver import *  # noqa: F403
