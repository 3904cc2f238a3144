"""Inputs, losses, metrics and predictions that models of one task share."""
