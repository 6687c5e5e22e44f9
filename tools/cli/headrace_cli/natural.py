"""Whole numbers on the command line: what is out of range is wrong usage, before anything is asked of anybody."""

import argparse

_MAX = 2**31 - 1


def natural(text: str) -> int:
    """0 to 2147483647; the type of an argparse argument."""
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(_MAX)) and int(text) <= _MAX):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no whole number from 0 to {_MAX}")
    return int(text)
