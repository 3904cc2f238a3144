"""Orders: the record of each row of each batch."""
