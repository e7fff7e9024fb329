"""Where the time of a turn goes: storage, codec, and the engine with everything else of ours."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from cProfile import Profile
from pstats import Stats

_CODEC = ("msgspec", "crc32", "sha256", "hashlib", "domain/time.py", "zlib")
# Waiting is waiting for a commit: the model and the tool answer at once.
_STORAGE = ("holdfast/store/", "apsw", "select.epoll", "selectors.py", "_thread.lock")


class Split:
    """Shares of the event loop's time, which the profiler makes longer but hardly shifts."""

    def __init__(self) -> None:
        self.profile = Profile()

    def told(self, seconds: float) -> str:
        """Return the shares of one turn that took so long without a profiler."""
        spent: Counter[str] = Counter()
        for (path, _, name), (_, _, own, _, _) in Stats(self.profile).stats.items():
            spent[_part(f"{path} {name}")] += own
        whole = sum(spent.values())
        parts = (
            f"{part} {seconds * 1000 * spent[part] / whole:.2f} ms ({spent[part] / whole:.0%})"
            for part in ("storage", "engine", "codec")
        )
        return f"{seconds * 1000:.2f} ms a turn: {', '.join(parts)}"


@contextmanager
def splitting(split: Split) -> Iterator[None]:
    """Profile the block."""
    split.profile.enable()
    try:
        yield
    finally:
        split.profile.disable()


def _part(place: str) -> str:
    if any(mark in place for mark in _CODEC):
        return "codec"
    return "storage" if any(mark in place for mark in _STORAGE) else "engine"
