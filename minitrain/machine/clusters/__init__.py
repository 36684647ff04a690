"""Clusters of unlike devices: what they are, and what computing and communicating on them takes.

Open `cluster` first: `Cluster` is groups of devices and the links between them, as a value, and which rank has which
device; `device_groups` has the groups, the links, and how caps and heat slow a device down. `cluster_files` reads it
from YAML. `cluster_network` prices what ranks of different groups do together, and makes a predictor for each rank.
`chosen_cluster` tells a cluster from other hardware.
"""
