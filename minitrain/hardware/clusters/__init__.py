"""Clusters of unlike devices: what they are, and what computing and communicating on them takes.

May import: the rest of `hardware`, and what that imports.

Open `cluster` first: `Cluster` is groups of devices and the links between them, as a value; `device_groups` has the
groups and the links. `cluster_files` reads it from YAML. `predictors` makes a predictor for each rank of it, `places`
says which rank has which device, and `cluster_network` prices what ranks of different groups do together. `power` says
how caps and heat slow a device down. `chosen_cluster` tells a cluster from other hardware.
"""
