"""Packs of references: many of them as one element of a PCollection, stored by column."""
