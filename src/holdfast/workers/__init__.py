"""Workers: processes that run tools, and the calls that clients claim."""
