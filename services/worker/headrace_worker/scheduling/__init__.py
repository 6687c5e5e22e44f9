"""Who runs next, and whether it fits: pure decisions over plain data. No torch, no I/O; the clock is an argument."""
