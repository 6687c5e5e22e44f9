"""The ranges of sampling options, the same for every protocol. Every test is written so that NaN fails it. Pure."""

from headrace.v1 import response_pb2
from headrace_kit.errors import HeadraceError

MAX_TOP_LOGPROBS = 20
RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 1e6),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "top_logprobs": (0, MAX_TOP_LOGPROBS),
    "top_k": (-1, 2**31 - 1),
}
MAX_REPETITION = 1e6
_MAX_BIAS = 100.0
MAX_BIASES = 1024
MAX_STOP_IDS = 1024
_ID_LISTS = ("allowed_ids", "banned_ids", "stop_token_ids")


def check_sampling(sampling: response_pb2.Sampling, vocab_size: int, max_output: int) -> None:
    """Raises invalid_argument that names the field."""
    for name, (lowest, highest) in RANGES.items():
        if sampling.HasField(name):
            value = getattr(sampling, name)
            if not lowest <= value <= highest:
                raise _invalid(name, f"must be {lowest:.10g} to {highest:.10g}, is {value}")
    penalty = sampling.repetition_penalty
    if sampling.HasField("repetition_penalty") and not 0 < penalty <= MAX_REPETITION:
        raise _invalid("repetition_penalty", f"must be greater than 0 and at most {MAX_REPETITION:.10g}, is {penalty}")
    if sampling.HasField("min_tokens") and not 0 <= sampling.min_tokens <= max_output:
        raise _invalid("min_tokens", f"must be 0 to the output limit of {max_output}, is {sampling.min_tokens}")
    if sampling.top_logprobs and not sampling.logprobs:
        raise _invalid("top_logprobs", "needs logprobs")
    _check_ids(sampling, vocab_size)


def _check_ids(sampling: response_pb2.Sampling, vocab_size: int) -> None:
    limits = {"logit_bias": MAX_BIASES, "stop_token_ids": MAX_STOP_IDS}
    for name in ("logit_bias", *_ID_LISTS):
        num_ids, most = len(getattr(sampling, name)), limits.get(name, vocab_size)
        if num_ids > most:
            raise _invalid(name, f"has at most {most} token ids here, got {num_ids}")
    for token_id, bias in sampling.logit_bias.items():
        _check_id("logit_bias", token_id, vocab_size)
        if not -_MAX_BIAS <= bias <= _MAX_BIAS:
            raise _invalid("logit_bias", f"must be -100 to 100, is {bias} for token {token_id}")
    for name in _ID_LISTS:
        for token_id in getattr(sampling, name):
            _check_id(name, token_id, vocab_size)


def _check_id(name: str, token_id: int, vocab_size: int) -> None:
    if not 0 <= token_id < vocab_size:
        raise _invalid(name, f"token {token_id} is outside the vocabulary of {vocab_size}")


def _invalid(name: str, problem: str) -> HeadraceError:
    return HeadraceError("invalid_argument", f"{name} {problem}", field=name)
