"""What every kind of input promises: the same cases for all of them."""
