"""The platform on this host: where its state lies, which processes it has, and who keeps them running."""
