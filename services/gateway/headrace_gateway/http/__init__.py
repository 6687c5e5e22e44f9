"""The OpenAI HTTP API over the same sessions as gRPC: parses, formats, and holds no rule of the contract."""
