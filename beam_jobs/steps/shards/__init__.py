"""Writing shards: from packs of references to files."""
