"""Processes and their devices: who they are, how they meet, and how they agree."""
