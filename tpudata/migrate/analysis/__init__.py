"""What a program does: its names of TensorFlow, its release, its sessions and guards."""
