"""Personal data and secrets by the name of their kind. Patterns are bounded: little text is held for them."""

from collections.abc import Mapping

from headrace_policy.screening.patterns import Pattern


def luhn(text: str) -> bool:
    """ISO/IEC 7812-1, annex B, over the digits of ``text``."""
    digits = [int(c) for c in text if c.isdigit()]
    doubled = [d * 2 - 9 * (d > 4) if i % 2 else d for i, d in enumerate(reversed(digits))]
    return sum(doubled) % 10 == 0 and any(digits)


def iban(text: str) -> bool:
    """ISO 13616: the remainder of the rearranged number modulo 97 is 1."""
    packed = text.replace(" ", "").upper()
    number = "".join(str(int(c, 36)) for c in packed[4:] + packed[:4])
    return int(number) % 97 == 1


def _phone(text: str) -> bool:
    return 8 <= sum(c.isdigit() for c in text) <= 15


ENTITIES: Mapping[str, tuple[Pattern, ...]] = {
    "email": (Pattern(r"\b[A-Za-z0-9][A-Za-z0-9._%+\-]{0,63}@(?:[A-Za-z0-9\-]{1,63}\.){1,8}[A-Za-z]{2,24}\b"),),
    "card": (Pattern(r"\b\d(?:[ \-]?\d){12,18}\b", luhn),),
    "iban": (Pattern(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?\b", iban),),
    "phone": (Pattern(r"(?:\+|\b00)\d{1,3}(?:[ .\-/]?\(?\d{1,4}\)?){2,6}\b", _phone),),
    "key": (
        Pattern(r"\bhr_[A-Za-z0-9]{1,64}_[A-Za-z0-9_\-]{8,128}"),
        Pattern(r"\bsk-[A-Za-z0-9_\-]{20,200}"),
        Pattern(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
        Pattern(r"\bgh[pousr]_[A-Za-z0-9]{36,100}\b"),
        Pattern(r"\bxox[abprs]-[A-Za-z0-9\-]{10,100}"),
        Pattern(r"-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----"),
        Pattern(r"\beyJ[A-Za-z0-9_\-]{10,1000}\.eyJ[A-Za-z0-9_\-]{10,1000}"),
    ),
}


def patterns(names: tuple[str, ...]) -> list[Pattern]:
    """Those of the named kinds, of every kind if none is named; raises ValueError for a name that is none."""
    unknown = sorted(set(names) - ENTITIES.keys())
    if unknown:
        raise ValueError(f"there is no kind {unknown[0]!r} of personal data; there are {', '.join(ENTITIES)}")
    return [pattern for name in names or ENTITIES for pattern in ENTITIES[name]]
