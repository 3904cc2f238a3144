"""Readers that the forms of annotation files share: JSON of any size, lines, tables, and rows grouped by picture."""
