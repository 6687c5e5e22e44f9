"""How replicas are started and stopped on this host. Decides nothing."""
