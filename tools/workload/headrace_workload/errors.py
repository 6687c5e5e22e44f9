"""What a workload file or a trace can get wrong."""


class WorkloadError(ValueError):
    """``where`` names the field or the line, ``detail`` says what is wrong with it."""

    def __init__(self, where: str, detail: str) -> None:
        super().__init__(f"{where}: {detail}" if where else detail)
        self.where = where
        self.detail = detail
