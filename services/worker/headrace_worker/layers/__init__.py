"""Building blocks of the model families; sharding knowledge lives here, never in a model file."""
