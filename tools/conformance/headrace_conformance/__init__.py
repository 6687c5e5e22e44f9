"""The stream conformance kit: rules with reasons, run against any OpenAI-style server. Knows no server's internals."""
