"""Whether some hardware is a cluster, without importing what only clusters need.

It is a file of its own, since every run imports it, and few runs are on a cluster.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from minitrain.machine.config import is_shipped


def is_cluster(hardware: object) -> bool:
    """Return whether some hardware is a `Cluster`."""
    return getattr(hardware, "is_cluster", False) is True


def cluster_or_other(hardware: Any) -> Any:
    """Return the cluster or the calibration that some hardware is, or names by a file; any other hardware as it is.

    Raises:
        HardwareConfigError: it names a file that is no cluster, though it has groups of devices.
    """
    if isinstance(hardware, str) and is_shipped(hardware):
        return hardware
    if not isinstance(hardware, str | os.PathLike | Mapping):
        return hardware
    from minitrain.machine.calibrated import Calibration, names_calibration  # noqa: PLC0415  (as the next)
    from minitrain.machine.clusters.cluster import Cluster  # noqa: PLC0415  (few runs name a file)
    from minitrain.machine.clusters.cluster_files import names_cluster  # noqa: PLC0415

    if names_calibration(hardware):
        return Calibration.read(hardware)  # type: ignore[arg-type]  # a path
    return Cluster.load(hardware) if names_cluster(hardware) else hardware
