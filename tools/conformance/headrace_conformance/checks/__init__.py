"""Pure checks: each judges one recording. Live streams and recorded ones go through the same code."""
