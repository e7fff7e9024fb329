"""The client side of ACP: sessions whose turns run in an external agent process."""
