"""Draws of a step that is compiled for several devices: stateless, of the operation's seeds, the step and the replica."""
