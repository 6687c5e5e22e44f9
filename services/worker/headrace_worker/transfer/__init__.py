"""The hand-off of KV pages between prefill and decode replicas: images, groups, leases. Knows no wire and no torch."""
