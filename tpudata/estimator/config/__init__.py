"""Configuration: RunConfig, TPUConfig, the cluster of TF_CONFIG or Slurm, and the checks of an estimator's arguments."""
