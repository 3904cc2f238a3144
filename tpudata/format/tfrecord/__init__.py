"""TFRecord files, plain or of gzip blocks: framing, checksums, writing and scanning."""
