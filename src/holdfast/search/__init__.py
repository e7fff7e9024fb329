"""Full-text search over messages, tools, titles and observations."""
