"""Step time as a sum of coefficient x feature: what a replica publishes and what schedulers and routers predict with.

Knows no card and no model: the coefficients carry everything. All are at least 0, so a prediction never falls when a
step gets more work.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from headrace_worker.perf.attention import Prefill
from headrace_worker.perf.errors import PerfError
from headrace_worker.perf.step import StepLoad

BEYOND = "tokens_beyond_"
FEATURES = ("step", "tokens", "decode_rows", "context_tokens", "attention_pairs")
DEFAULT_CHUNK_TOKENS = 8192


def features_of(load: StepLoad, knee_tokens: int) -> tuple[float, ...]:
    """One step's features, in the order of `FEATURES` and then `tokens_beyond_<knee>`.

    step: 1. tokens: rows of the matrix products. decode_rows: sequences decoding. context_tokens: KV tokens they read.
    attention_pairs: (query, key) pairs of the prompt chunks. tokens_beyond_K: rows above K, where products stop being
    bound by reading the weights.
    """
    pairs = sum(_pairs(each.num_tokens, each.num_cached) for each in load.prefills)
    return _features(load.num_tokens, load.num_decodes, load.num_context_tokens, pairs, knee_tokens)


def _pairs(num_tokens: int, num_cached: int) -> float:
    return num_tokens * num_cached + num_tokens**2 / 2


def _features(tokens: int, num_decodes: int, num_context: int, pairs: float, knee_tokens: int) -> tuple[float, ...]:
    return (1.0, tokens, num_decodes, num_context, pairs, max(0, tokens - knee_tokens))


@dataclass(frozen=True)
class StepModel:
    """`coefficients` in seconds per unit, in the order of `features_of`; `num_samples` steps were fitted."""

    coefficients: tuple[float, ...]
    knee_tokens: int
    num_samples: int = 0

    def __post_init__(self) -> None:
        assert len(self.coefficients) == len(FEATURES) + 1, "one coefficient per feature"
        assert min(self.coefficients) >= 0, "a negative coefficient would predict that more work takes less time"

    def predict(self, load: StepLoad) -> float:
        """Seconds of a step."""
        return self._seconds(features_of(load, self.knee_tokens))

    def predict_step_s(
        self, prefill_tokens: int, decode_rows: int, context_tokens: int, cached_tokens: int = 0
    ) -> float:
        """Seconds of a step with one chunk of `prefill_tokens` on top of `cached_tokens`; never falls as one rises.

        `predict` without its objects: the scheduler asks several times in each step that takes a prompt.
        """
        tokens, pairs = decode_rows + prefill_tokens, _pairs(prefill_tokens, cached_tokens)
        return self._seconds(_features(tokens, decode_rows, context_tokens, pairs, self.knee_tokens))

    def _seconds(self, features: tuple[float, ...]) -> float:
        step, tokens, rows, context, pairs, beyond = self.coefficients
        one, num_tokens, num_rows, num_context, num_pairs, num_beyond = features
        seconds = step * one + tokens * num_tokens + rows * num_rows
        return seconds + context * num_context + pairs * num_pairs + beyond * num_beyond

    def decode_step_s(self, decode_rows: int, context_tokens: int) -> float:
        """Seconds of a step that only decodes."""
        return self.predict_step_s(0, decode_rows, context_tokens)

    def prefill_s(
        self,
        num_tokens: int,
        num_cached: int = 0,
        chunk_tokens: int = DEFAULT_CHUNK_TOKENS,
        beside: StepLoad | None = None,
    ) -> float:
        """Seconds to compute `num_tokens` of a prompt on top of `num_cached`, chunk by chunk beside the given load."""
        beside = beside or StepLoad()
        done, seconds = 0, 0.0
        while done < num_tokens:
            chunk = Prefill(min(chunk_tokens, num_tokens - done), num_cached + done)
            seconds += self.predict(StepLoad((*beside.prefills, chunk), beside.num_decodes, beside.num_context_tokens))
            done += chunk.num_tokens
        return seconds

    def ttft_s(self, num_tokens: int, num_cached: int, num_tokens_ahead: int, beside: StepLoad) -> float:
        """Seconds from entering the queue to the first token: the rest of the running step, prompts ahead, one's own.

        On average half of the running step is left; prompts ahead are taken as one without cached keys.
        """
        rest_s = self.predict(beside) / 2 if beside.num_tokens else 0.0
        return (
            rest_s
            + self.prefill_s(num_tokens_ahead, beside=beside)
            + self.prefill_s(num_tokens, num_cached, beside=beside)
        )

    def to_mapping(self) -> dict[str, float]:
        """Coefficients by feature name, as the contract carries them."""
        return dict(zip((*FEATURES, f"{BEYOND}{self.knee_tokens}"), self.coefficients, strict=True))

    @classmethod
    def from_mapping(cls, coefficients: Mapping[str, float], num_samples: int = 0) -> "StepModel":
        """The inverse of `to_mapping`; `PerfError` names a feature that is unknown, missing, negative or not finite."""
        knees = [name.removeprefix(BEYOND) for name in coefficients if name.startswith(BEYOND)]
        if len(knees) != 1 or not knees[0].isdigit():
            raise PerfError("coefficients", f"need exactly one feature {BEYOND}<tokens>, not {len(knees)}")
        names = (*FEATURES, BEYOND + knees[0])
        for name in {*names, *coefficients}:
            value = coefficients.get(name, -1.0)
            if name not in names or not 0 <= value < float("inf"):
                raise PerfError(f"coefficients[{name}]", "is unknown, missing, negative or not finite")
        return cls(tuple(coefficients[name] for name in names), int(knees[0]), num_samples)
