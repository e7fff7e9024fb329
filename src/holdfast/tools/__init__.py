"""What an agent can do: files, commands, git, the web, MCP servers, checkpoints."""
