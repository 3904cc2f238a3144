"""Text files: their forms, the positions of their documents, and the values of the documents' fields."""
