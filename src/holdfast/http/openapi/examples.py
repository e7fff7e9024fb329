"""Examples: one member of each type that a body is made of, as it goes over the wire."""

from collections.abc import Mapping
from typing import Any, Final

EXAMPLES: Final[Mapping[str, Any]] = {}
