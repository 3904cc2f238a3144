"""Hooks, summaries and savers of a training."""
