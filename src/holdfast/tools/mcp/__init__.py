"""MCP servers as tools: declared, started or reached, listed and called."""
