"""Local and mounted disks."""
