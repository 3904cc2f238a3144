"""Values of features: what a user or an input gives, and what a record stores."""
