from minitrain.search.schedules import *  # noqa: F403
