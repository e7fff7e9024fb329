"""Copy a whole store into another database."""
