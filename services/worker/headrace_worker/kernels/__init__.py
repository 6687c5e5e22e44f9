"""Inner loops: each kernel beside its torch twin."""
