"""The schema of fleet.yaml: one module per section, all of them plain frozen data. Knows no store and no process."""
