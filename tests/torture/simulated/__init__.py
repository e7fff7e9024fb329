"""A whole house behind its ports, in one thread and in virtual time: a seed is a life."""
