"""MCP servers as tool providers: declaration, connection, discovery and calls."""
