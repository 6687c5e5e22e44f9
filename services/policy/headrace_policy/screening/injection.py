"""Phrases of prompt injection and jailbreaks, in bounded form. A heuristic: it misses what it has not seen."""

from headrace_policy.screening.patterns import Pattern

_GAP = r"[\s\"'*_]{1,4}"
_ALL = rf"(?:(?:all|any|every|the|your|my|of|these|those){_GAP}){{0,3}}"
_OLD = rf"(?:(?:previous|prior|above|earlier|preceding|original|initial|system|existing){_GAP}){{1,2}}"
PHRASES = (
    rf"(?i)\b(?:ignore|disregard|forget|override|bypass){_GAP}{_ALL}{_OLD}"
    r"(?:instructions?|prompts?|rules|directions|messages?|guidelines|context)\b",
    rf"(?i)\b(?:reveal|print|show|repeat|output){_GAP}(?:me{_GAP})?{_ALL}(?:system|hidden|secret|initial){_GAP}"
    r"(?:prompt|instructions?|message)\b",
    rf"(?i)\byou{_GAP}are{_GAP}(?:now{_GAP})?(?:dan|in{_GAP}(?:developer|god|jailbreak|unrestricted){_GAP}mode)\b",
    rf"(?i)\b(?:enable|enter|activate|switch{_GAP}to){_GAP}(?:developer|god|jailbreak|unrestricted|dan){_GAP}mode\b",
    rf"(?i)\bdo{_GAP}anything{_GAP}now\b",
    rf"(?i)\bpretend{_GAP}(?:that{_GAP})?(?:you{_GAP}have|there{_GAP}are){_GAP}no{_GAP}"
    r"(?:restrictions?|rules|limits|guidelines|filters?)\b",
    r"<\|(?:im_start|im_end|system|endoftext)\|>",
    r"(?i)\[/?(?:INST|SYS)\]|<</?SYS>>",
)


def patterns(more: tuple[str, ...]) -> list[Pattern]:
    """Ours, and the rule's own regular expressions."""
    return [Pattern(text) for text in (*PHRASES, *more)]
