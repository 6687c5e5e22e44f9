"""What a user of the simulator can get wrong."""


class SimulationError(ValueError):
    """A fleet file, a fault or an option that cannot be simulated; the message names it."""
