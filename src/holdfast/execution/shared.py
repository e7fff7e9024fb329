"""A process among others that may run on other machines."""

from holdfast.domain.leases import Holder
from holdfast.ports import Machine


class OneOfMany:
    """Implements the `Machine` port where several machines share one store.

    Another boot is another machine there, and proves nothing: its leases have to run out.
    """

    def __init__(self, inner: Machine) -> None:
        self._inner = inner

    def holder(self) -> Holder:
        return self._inner.holder()

    def is_gone(self, holder: Holder) -> bool:
        is_here = holder.boot == self._inner.holder().boot
        return is_here and self._inner.is_gone(holder)
