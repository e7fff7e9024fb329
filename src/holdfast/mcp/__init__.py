"""Holdfast as an MCP server: tools, resources and prompts for whatever agent is connected."""
