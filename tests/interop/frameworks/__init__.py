"""What runs in the environments of agent frameworks; nothing here is imported by other tests."""
