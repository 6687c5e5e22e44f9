"""The rules: each asks the server something of its own, or looks at the recorded streams."""
