"""The choice of settings is a report over the days that it is given."""

import csv
import gzip
from pathlib import Path

import pytest

from headrace_sim.experiments import scaling_choice


@pytest.mark.slow
def test_settings_are_compared_on_each_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with gzip.open(tmp_path / "m-large_total_rate_10min.csv.gz", "wt") as file:
        rows = csv.writer(file)
        rows.writerow(("model", "t_s", "total_rate_rps"))
        rows.writerows(("m-large", 600 * index, 60 if index < 3 else 180) for index in range(6))
    monkeypatch.setattr(scaling_choice, "_HOURS", 1)
    monkeypatch.setattr(scaling_choice, "_QUANTILES", (0.75,))
    made = scaling_choice.report([(0, 0)], tmp_path)
    assert [row[:3] for row in made.rows] == [
        ["0.75", reserve, down] for reserve in ("1", "2") for down in ("300 s", "660 s")
    ]
    assert all(80 < float(row[3].split("%")[0]) < 100 for row in made.rows)
