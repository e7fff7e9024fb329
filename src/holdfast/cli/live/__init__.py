"""What a conversation looks like at a terminal that can be redrawn."""
