"""Open-loop load on any OpenAI-style server."""
