"""Attention over paged KV: one small port and its implementations."""
