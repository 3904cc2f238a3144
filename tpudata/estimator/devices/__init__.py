"""TPUs and other devices: the replicas and hosts of a run."""
