"""What the benchmarks in the folder above run side by side, some of it in separate processes."""
