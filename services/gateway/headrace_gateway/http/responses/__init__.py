"""The API /v1/responses, with nothing stored."""
