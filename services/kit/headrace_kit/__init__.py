"""How a process of ours is configured, starts, speaks, fails and stops. Knows no service and no domain type."""
