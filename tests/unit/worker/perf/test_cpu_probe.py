"""The probe measures; what it measures is a machine that could exist."""

from headrace_worker.perf.cpu_probe import measure_cpu


def test_rates_are_those_of_some_machine() -> None:
    measured = measure_cpu()
    assert 1e8 < measured.flops_fp32 < 1e14
    assert 1e8 < measured.memory_bandwidth < 1e13
    assert 1e7 < measured.copy_bandwidth < 1e13
    assert measured.memory_bytes > 2**28
    assert measured.num_cores >= 1
