"""The file tools, and the path handling that they share with the client side of ACP."""
