"""Start, confine, supervise and end processes. Shared by `tools` and `acp`; imports neither."""
