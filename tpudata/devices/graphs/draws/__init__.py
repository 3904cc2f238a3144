"""Stateless draws of a step, which follow from an operation's seeds, the step and the replica."""
