"""What models that we know say to a question: a replica that says something else does not become ready."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class KnownAnswer:
    """Greedy output ids of a prompt, float32, as Hugging Face transformers generates them."""

    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]


# "What is the capital of France?" -> "The capital of France is Paris."
_SMOLLM2 = KnownAnswer(
    prompt_ids=(
        *(1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407, 19712, 8182),
        *(2, 198, 1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198),
    ),
    output_ids=(504, 3575, 282, 4649, 314, 7042, 30, 2),
)

# By file name: the hex SHA-256 of the weights' one file, and the answer.
_BY_FILE: dict[str, tuple[str, KnownAnswer]] = {
    "SmolLM2-135M-Instruct.Q4_1.gguf": (
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        _SMOLLM2,
    ),
}


def known_answer(name: str, file_digests: Callable[[], Mapping[str, str]]) -> KnownAnswer | None:
    """The answer of a model whose file is called `name`.gguf, if its content is the one that we know.

    `file_digests` (file name -> hex SHA-256) reads all of the weights: it is asked only for a name that is known.
    """
    digest, answer = _BY_FILE.get(f"{name}.gguf", ("", None))
    return answer if answer is not None and file_digests().get(f"{name}.gguf") == digest else None
