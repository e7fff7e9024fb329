"""JSON-RPC over byte streams: framing, the connection, redaction. Knows nothing of sessions."""
