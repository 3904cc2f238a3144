"""Analysis of a program: its names of TensorFlow, its release, its sessions and guards."""
