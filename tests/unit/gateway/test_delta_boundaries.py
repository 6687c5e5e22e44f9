"""The whole text side at once: tokens cut anywhere, a stop list and a filter; the stream's sum is the one-shot text."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from headrace_gateway.parsing.hermes import HermesParser
from headrace_gateway.parsing.parts import Part, TextParser, merged
from headrace_gateway.parsing.reasoning import ReasoningParser
from headrace_gateway.text.choice_text import ChoiceText
from headrace_gateway.text.detokenizer import Detokenizer
from headrace_gateway.text.stop_strings import StopStrings
from headrace_gateway.text.token_bytes import ScriptedBytes

CALL = '{"name": "f", "arguments": {"a": 1}}'
PIECES = ["<think>", "</think>", "</", "\n", "ab", "User:", "é😀", "<tool_call>", CALL, "</tool_call>", "<"]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=10).map("".join)
STOPS = st.lists(st.sampled_from(["\nUser:", "b", "</", "😀", "</tool_call>", ">\n"]), unique=True, max_size=3)
PARSERS = {"none": None, "reasoning": lambda: ReasoningParser(inside=False), "calls": HermesParser}


def before_the_stop(stops: list[str], text: str) -> str:
    """Up to the stop that is completed first; of those, the longest."""
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    return text[: min(ends)[1]] if ends else text


def parsed(parser: TextParser | None, texts: list[str]) -> list[Part] | str:
    if parser is None:
        return "".join(texts)
    parts = [part for text in texts for part in parser.feed(text)]
    return merged(parts + parser.finish())


@given(TEXTS, STOPS, st.sampled_from(sorted(PARSERS)), st.lists(st.integers(0, 100), max_size=12))
def test_any_tokens_give_the_one_shot_text(text: str, stops: list[str], filtered: str, cuts: list[int]) -> None:
    raw = text.encode()
    edges = sorted({0, len(raw), *(cut for cut in cuts if cut < len(raw))})
    tokens = [raw[start:end] for start, end in pairwise(edges)]
    choice = ChoiceText(Detokenizer(ScriptedBytes(tokens)), StopStrings(stops) if stops else None)
    texts = [choice.feed((260 + place,)).text for place in range(len(tokens))]
    texts.append(choice.finish().text)
    expected = before_the_stop(stops, text)
    assert "".join(texts) == expected
    assert bool(choice.stop) == (expected != text)
    make = PARSERS[filtered]
    shown = parsed(make() if make else None, [one for one in texts if one])
    assert shown == parsed(make() if make else None, [expected])
