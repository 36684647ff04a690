from minitrain.machine.platform import *  # noqa: F403
