"""Records of text: tokens, sequences and packed rows."""
