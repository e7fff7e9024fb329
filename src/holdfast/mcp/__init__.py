"""Holdfast as an MCP server: tools, resources and prompts for any MCP client."""
