"""What can be wrong with a model that someone asks us to serve. The worker refuses to start and prints this."""


class ModelError(ValueError):
    """Base of all errors about a model reference, its files or its configuration."""


class ModelReferenceError(ModelError):
    """The reference does not name a model, or what it names cannot be fetched."""


class CheckpointError(ModelError):
    """A file of the model is missing, damaged or does not fit the others; the text starts with the file."""

    def __init__(self, file: str, detail: str) -> None:
        super().__init__(f"{file}: {detail}")
        self.file = file
        self.detail = detail


class UnsupportedModelError(ModelError):
    """The files are sound, but ask for something that no model family here does; the text names it."""
