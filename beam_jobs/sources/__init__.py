"""Where records come from: each source lists references to what is in the input, and reads nothing else."""
