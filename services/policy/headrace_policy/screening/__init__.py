"""What may be said: rules, the detectors behind them, and text that is held until no rule can still want it."""
