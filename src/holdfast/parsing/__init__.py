"""Text that strangers wrote, read in bounded time and memory."""
