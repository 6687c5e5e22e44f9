"""The least-squares solution without negative unknowns, from its normal equations. Knows nothing of what is fitted."""

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
TOLERANCE = 1e-10


def solve_non_negative(information: Vector, target: Vector) -> Vector:
    """argmin over x >= 0 of x'Ax/2 - b'x for A = `information` (symmetric, positive definite) and b = `target`.

    Active sets (Lawson and Hanson, "Solving Least Squares Problems", 1974, ch. 23): unknowns enter one at a time while
    the gradient favours them. Equal to the unconstrained solution where that has no negative part.
    """
    unconstrained = np.linalg.solve(information, target)
    if unconstrained.min() >= 0:
        return np.asarray(unconstrained, dtype=np.float64)
    size = target.size
    solution: Vector = np.zeros(size)
    free = np.zeros(size, dtype=bool)
    for _ in range(3 * size):
        gradient = np.where(free, -np.inf, target - information @ solution)
        entering = int(np.argmax(gradient))
        if gradient[entering] <= TOLERANCE * (1.0 + np.abs(target).max()):
            break
        free[entering] = True
        solution, free = _settle(information, target, solution, free)
    return solution


def _settle(
    information: Vector, target: Vector, solution: Vector, free: NDArray[np.bool_]
) -> tuple[Vector, NDArray[np.bool_]]:
    """Step to the solution on the free unknowns; those that would cross zero stop there and are fixed."""
    while True:
        trial: Vector = np.zeros_like(solution)
        if free.any():
            trial[free] = np.linalg.solve(information[np.ix_(free, free)], target[free])
        crossing = free & (trial < 0)
        if not crossing.any():
            return trial, free
        reach = solution[crossing] / (solution[crossing] - trial[crossing])
        solution = solution + float(reach.min()) * (trial - solution)
        stopped = crossing & (solution <= solution[crossing].min() + 1e-300)
        solution = np.where(stopped, 0.0, np.maximum(solution, 0.0))
        free = free & ~stopped
