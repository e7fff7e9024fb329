"""JSON-RPC over byte streams: framing, connection, redaction. Knows nothing about sessions."""
