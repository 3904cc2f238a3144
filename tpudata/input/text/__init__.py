"""Sequences of tokens: padding, masks and targets."""
