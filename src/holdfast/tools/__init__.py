"""The tools of an agent: files, commands, git, the web, MCP servers, checkpoints."""
