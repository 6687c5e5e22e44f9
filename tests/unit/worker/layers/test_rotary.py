"""Rotary frequencies, with the pinned values of llama3's stretch, and what a rotation must keep."""

import pytest
import torch

from headrace_worker.layers.rotary import Llama3Stretch, RotaryTable, inverse_frequencies

STRETCH = Llama3Stretch(factor=8, low_freq_factor=1, high_freq_factor=4, original_max_position=8192)


@pytest.mark.parametrize(
    ("index", "value"),
    [
        (0, 1.0),
        (28, 3.21144599e-03),
        (29, 2.16657076e-03),
        (32, 5.24846161e-04),
        (35, 9.55621235e-05),
        (63, 3.06892599e-07),
    ],
)
def test_llama3_stretch_has_the_reference_values(index: int, value: float) -> None:
    """B131: d=128, theta 5e5, factor 8, low 1, high 4, original 8192."""
    inv_freq = inverse_frequencies(128, 5e5, STRETCH)
    assert inv_freq[index].item() == pytest.approx(value, rel=1e-6)


def test_short_wavelengths_are_kept_and_long_ones_slowed_by_the_factor() -> None:
    """B131: up to pair 28 nothing changes; the last pair turns eight times slower."""
    plain, stretched = inverse_frequencies(128, 5e5), inverse_frequencies(128, 5e5, STRETCH)
    assert torch.equal(plain[:29], stretched[:29])
    torch.testing.assert_close(stretched[63] * 8, plain[63])


def test_scores_depend_on_distance_alone() -> None:
    table = RotaryTable(inverse_frequencies(16, 1e4), 64, torch.float32, torch.device("cpu"))
    query, key = torch.randn(2, 1, 1, 16, generator=torch.Generator().manual_seed(0))
    scores = [
        (table.at(torch.tensor([at + 5])).apply(query) * table.at(torch.tensor([at])).apply(key)).sum().item()
        for at in (0, 7, 40)
    ]
    assert scores == pytest.approx([scores[0]] * 3, rel=1e-4)


def test_position_zero_changes_nothing() -> None:
    table = RotaryTable(inverse_frequencies(16, 1e4), 4, torch.float32, torch.device("cpu"))
    rows = torch.randn(2, 3, 16, generator=torch.Generator().manual_seed(1))
    assert torch.equal(table.at(torch.tensor([0, 0])).apply(rows), rows)
