"""Text files: their forms, the places of their documents, and the values of these."""
