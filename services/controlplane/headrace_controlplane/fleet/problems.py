"""What is wrong with a fleet file, all of it at once. Knows no section."""

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Problem:
    """One thing to correct: ``path`` in the file, such as ``pools.cpu.min``, and what is expected there."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class InvalidFleet(ValueError):
    """A fleet file that cannot be applied; ``problems`` is never empty."""

    def __init__(self, problems: list[Problem]) -> None:
        assert problems, "an invalid file has a problem"
        super().__init__("; ".join(map(str, problems)))
        self.problems = problems


def join(path: str, key: object) -> str:
    """The path of ``key`` below ``path``; a name that is no plain word is quoted."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    text = str(key)
    plain = text and all(c.isalnum() or c in "_-./" for c in text) and "." not in text
    shown = text if plain else f'"{text}"'
    return f"{path}.{shown}" if path else shown
