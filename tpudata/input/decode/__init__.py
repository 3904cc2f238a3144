"""From serialised records to tensors."""
