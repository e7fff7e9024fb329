"""JSON forms of the domain's nouns, written once: for HTTP, the client, `--json` and MCP."""
