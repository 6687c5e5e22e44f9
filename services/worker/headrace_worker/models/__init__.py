"""Model families, one file each, and everything that turns files into a model."""
