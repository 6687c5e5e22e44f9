"""Writes docs/errors.md from the kit's table of reasons: `python -m tools.errors_doc`."""

from collections.abc import Iterator
from pathlib import Path

from headrace_kit.errors import REASONS

PATH = Path(__file__).parents[1] / "docs/errors.md"
HEAD = """\
# Errors

Every error carries one of these reasons. There are no others; a test refuses any that is not in this table.

- Over **HTTP** it is `error.code`, with `error.message` for people, `error.param` for the field that is wrong, and
  `error.response_id` once a response was created. `Retry-After` says when to come back.
- Over **gRPC** it is `google.rpc.ErrorInfo.reason` in upper case, with the domain `headrace`; `BadRequest` names the
  field and `RetryInfo` says when to come back. After `created` it is the `reason` of the one terminal event.
- In **/v1/responses** a failed response has it as `error.reason`, for `error.code` is one of that API's own.

A retryable error may go away by itself: send the request again, with the failed response's id as `retry_of`.

This page is written by `python -m tools.errors_doc`.
"""
SECTIONS = {
    "before_created": (
        "Before `created`: a status, and no response",
        "Nothing was opened and nothing is charged.",
    ),
    "failed": (
        "After `created`: the response ends `failed`",
        "The tokens are refunded. A stream ends with one error event and no `[DONE]`; what is not streamed has the "
        "status below.",
    ),
    "cancelled": (
        "After `created`: the response ends `cancelled`",
        "The prompt and what was generated are charged.",
    ),
    "choice": (
        "How a choice ends",
        "No errors: these are the `finish_reason` of a choice. A response with a choice that ended by `length` is "
        "`incomplete`; one that a content rule ended is `incomplete` with `content_filter`.",
    ),
}


def render() -> str:
    """The whole page."""
    return HEAD + "".join(f"\n{_section(phase)}" for phase in SECTIONS)


def _section(phase: str) -> str:
    title, text = SECTIONS[phase]
    return "\n".join([f"## {title}", "", text, "", *_rows(phase), ""])


def _rows(phase: str) -> Iterator[str]:
    named = {name: row for name, row in REASONS.items() if row.phase == phase}
    if phase == "choice":
        yield from ("| reason | meaning |", "|---|---|")
        yield from (f"| `{name}` | {row.meaning} |" for name, row in named.items())
        return
    yield from ("| reason | HTTP | gRPC | retryable | meaning |", "|---|---|---|---|---|")
    for name, row in named.items():
        yield f"| `{name}` | {row.http} | {row.code.name} | {'yes' if row.retryable else 'no'} | {row.meaning} |"


if __name__ == "__main__":
    PATH.write_text(render(), encoding="utf-8")
