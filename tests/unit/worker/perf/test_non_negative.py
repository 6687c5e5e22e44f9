"""The solver against its optimality conditions, which no other algorithm is needed to check."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace_worker.perf.non_negative import solve_non_negative


@given(st.integers(0, 10**6), st.integers(1, 8), st.floats(1e-6, 1.0))
def test_the_solution_meets_the_conditions_of_karush_kuhn_and_tucker(seed: int, size: int, ridge: float) -> None:
    """x >= 0, gradient >= 0 where x = 0, gradient = 0 where x > 0."""
    random = np.random.default_rng(seed)
    matrix = random.normal(size=(12, size))
    information = matrix.T @ matrix + ridge * np.eye(size)
    target = random.normal(size=size) * 5
    solution = solve_non_negative(information, target)
    gradient = information @ solution - target
    assert solution.min() >= 0
    assert gradient.min() >= -1e-6
    assert abs(gradient @ solution) <= 1e-6 * (1 + abs(target @ solution))


def test_an_interior_solution_is_the_unconstrained_one() -> None:
    information, truth = np.array([[2.0, 0.5], [0.5, 1.0]]), np.array([1.0, 3.0])
    assert np.allclose(solve_non_negative(information, information @ truth), truth)
