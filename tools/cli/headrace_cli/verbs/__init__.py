"""The verbs of the `headrace` command: one module each, with `add_arguments(parser)` and `run(options) -> int`."""
