"""Costs of compiled steps: memory, time, and the feeding that they take."""
