"""How generated tests run here: without a stopwatch, because a shared machine may pause."""

from hypothesis import settings

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
