"""A small correct server, written apart from the platform, whose faults can be switched on one at a time."""
