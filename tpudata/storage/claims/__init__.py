"""Which run may write into a folder."""
