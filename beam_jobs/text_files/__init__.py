"""Text files: their compression, the places of their documents, and the values of these."""
