"""How much of each of the four resources a step used, as it ran. Pure: the measurement is an argument."""

from __future__ import annotations

from headrace_worker.perf.resources import Binding
from headrace_worker.perf.step import Roofline, StepLoad


def achieved(roofline: Roofline, load: StepLoad, took_s: float, held_share: float, next_share: float) -> Binding:
    """The step's work at the card's published peaks, over the time that it took; `held_share` of HBM was held.

    Where the prediction is of the model's own efficiency, this is of what happened: a share well below the predicted
    one is time that the roofline does not explain. Stages work at the same time, so their seconds are not added up.
    """
    cost = roofline.step(load)
    predicted = cost.binding(held_share, next_share)
    scale = cost.time_s / max(took_s * cost.num_stages, 1e-9)
    shares = {resource: share * scale for resource, share in predicted.shares.items()}
    capacity = type(predicted.resource).HBM_CAPACITY
    shares[capacity] = held_share
    resource = (
        capacity if next_share > 1 else max((each for each in shares if each != capacity), key=shares.__getitem__)
    )
    return Binding(resource, shares)
