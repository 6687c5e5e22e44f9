"""What the gateway asks of others: policy, router, workers, control plane. The only modules that see their messages."""
