"""What computes a plan: a port, the scripted twin of a model, and the torch execution."""
