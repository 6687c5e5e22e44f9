"""Plots that people can read: every name inside the picture, no two words in one place, no two lines alike."""

import itertools
import re

import pytest

from headrace_worker.perf.drawing import Line, page, plot

NUM_PIXELS = 860


@pytest.mark.parametrize("num_lines", [1, 4, 5, 9])
def test_names_of_lines_stand_apart_and_inside(num_lines: int) -> None:
    drawn = plot("p", [Line(f"tp{i} pp2", [0, 1], [0, i]) for i in range(num_lines)], "s")
    names = re.findall(r'<text x="(\d+)" y="14" fill="(#\w+)">', drawn)
    places = [int(x) for x, _ in names]
    assert len(places) == num_lines and max(places) + 50 <= NUM_PIXELS
    assert all(later - earlier >= 60 for earlier, later in itertools.pairwise(places))
    assert len({colour for _, colour in names}) == num_lines


def test_the_unit_of_an_axis_stands_with_its_last_number() -> None:
    drawn = plot("p", [Line("a", [0, 1829], [0, 1])], "s")
    assert ">1829 s</text>" in drawn
    places = re.findall(r'<text x="([\d.]+)" y="([\d.]+)"', drawn)
    assert len(places) == len(set(places))


def test_a_page_scrolls_its_plots_where_they_do_not_fit() -> None:
    whole = page("t", "x < y", [plot("p", [Line("a", [0], [0])], "s")])
    assert '<div class="plot"><h2>' in whole and "overflow-x:auto" in whole and "x &lt; y" in whole
