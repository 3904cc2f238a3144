"""Hooks of a run, and its summaries, profiles and scaffold."""
