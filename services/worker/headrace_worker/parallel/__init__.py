"""What makes several processes one engine: places, collectives, the ring of plans, links. Knows no model."""
