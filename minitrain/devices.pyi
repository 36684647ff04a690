from minitrain.machine.devices import *  # noqa: F403
