"""Other durable engines, killed as we are: what becomes of a tool that had its effect."""
