"""The client side of ACP: a session whose turns another agent's program runs."""
