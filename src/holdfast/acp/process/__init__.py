"""Programs: what is started and how, who keeps it, and how it ends."""
