"""Fits a replica's step-time model to the steps it measures, one at a time, starting from the roofline.

Recursive least squares in information form (Haykin, "Adaptive Filter Theory", ch. 10) with exponential forgetting, on
gains: coefficient = prior coefficient x gain. Four guards:
  - the prior's information is never forgotten, so collinear or missing features leave their gains at the prior;
  - Huber's weight bounds what one outlier (a page fault, a compile, a stolen core) can do;
  - a machine that is steadily far from the prediction re-anchors the prior instead of being averaged with it;
  - gains are projected onto [0, inf) in the metric of the data, so predictions stay monotonic.
Does not know where the measurements come from.
"""

import math

import numpy as np
from numpy.typing import NDArray

from headrace_worker.perf.non_negative import solve_non_negative
from headrace_worker.perf.step import StepLoad
from headrace_worker.perf.step_model import StepModel, features_of

FORGETTING = 0.999
PRIOR_STRENGTH = 0.05
HUBER = 1.5
SCALE_MEMORY = 0.98
MAX_RATIO = 4.0
MIN_SCALE, MAX_SCALE = 0.002, 0.5
# The drift is the recent mean of log(measured / predicted), each clipped to +-1: a few outliers cannot carry it far.
DRIFT_MEMORY, MAX_DRIFT = 0.9, 0.5
MIN_TRUSTED = 200
# A gain on a prior of exactly 0 would never leave it: each feature of a typical step is given a thousandth of its time.
TYPICAL_STEP = np.array([1.0, 1024.0, 64.0, 131072.0, 1e6, 1024.0])
MIN_PRIOR_SHARE = 1e-3


class OnlineFit:
    """Owns the running sums: `observe` measured steps, read `model` at any time. Keeps no history."""

    def __init__(self, prior: StepModel) -> None:
        self._knee_tokens = prior.knee_tokens
        self._num_samples = 0
        self._anchor(np.array(prior.coefficients))

    def _anchor(self, coefficients: NDArray[np.float64]) -> None:
        """Forget all steps; start again from `coefficients`."""
        floor = MIN_PRIOR_SHARE * float(coefficients @ TYPICAL_STEP) / TYPICAL_STEP
        self._prior = np.maximum(coefficients, floor)
        size = coefficients.size
        self._information: NDArray[np.float64] = np.zeros((size, size))
        self._target: NDArray[np.float64] = np.zeros(size)
        self._prior_information = PRIOR_STRENGTH * np.eye(size)
        self._gains: NDArray[np.float64] = np.ones(size)
        self._scale, self._drift, self._num_anchored = MAX_SCALE, 0.0, 0

    @property
    def num_samples(self) -> int:
        """Steps taken in."""
        return self._num_samples

    @property
    def model(self) -> StepModel:
        """The model as fitted so far."""
        coefficients = tuple(float(value) for value in self._prior * self._gains)
        return StepModel(coefficients, self._knee_tokens, self._num_samples)

    def observe(self, load: StepLoad, measured_s: float) -> None:
        """Take in one step. Times that are not positive and finite, and empty steps, say nothing and are dropped."""
        if not (math.isfinite(measured_s) and measured_s > 0) or load.num_tokens == 0:
            return
        features = np.array(features_of(load, self._knee_tokens))
        seconds = self._prior * features
        predicted_s = max(float(seconds @ self._gains), 1e-9)
        self._num_samples += 1
        self._num_anchored += 1
        drift = min(max(math.log(measured_s / predicted_s), -1.0), 1.0)
        self._drift = DRIFT_MEMORY * self._drift + (1 - DRIFT_MEMORY) * drift
        if abs(self._drift) > MAX_DRIFT:
            # Gains of a few steps are not yet to be trusted: then only the level of the prior moves, not its shape.
            learned = self._prior * self._gains if self._num_anchored >= MIN_TRUSTED else self._prior
            level = math.exp(self._drift) * predicted_s / float(learned @ features)
            self._anchor(learned * level)
            return
        # Relative errors count: a decode step of 10 ms weighs as much as a prefill of one second. A step that took many
        # times what was predicted is related to its own time, so that no single one outweighs all that follow.
        reference_s = max(predicted_s, measured_s / MAX_RATIO)
        shares, ratio = seconds / reference_s, measured_s / reference_s
        weight = self._weight(abs(measured_s - predicted_s) / reference_s)
        self._information = FORGETTING * self._information + weight * np.outer(shares, shares)
        self._target = FORGETTING * self._target + weight * ratio * shares
        self._gains = solve_non_negative(
            self._information + self._prior_information, self._target + self._prior_information.sum(axis=1)
        )

    def _weight(self, error: float) -> float:
        """Huber's weight of a relative error against the running scale of errors, which one outlier moves little."""
        bound = HUBER * self._scale
        weight = 1.0 if error <= bound else bound / error
        scale = SCALE_MEMORY * self._scale + (1 - SCALE_MEMORY) * 1.25 * min(error, 3 * self._scale)
        self._scale = min(max(scale, MIN_SCALE), MAX_SCALE)
        return weight
