"""The server side of ACP: Holdfast as the agent of an editor or another client."""
