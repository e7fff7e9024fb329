"""The Agent Client Protocol, version 1: others' agents behind us, and us behind others' editors."""
