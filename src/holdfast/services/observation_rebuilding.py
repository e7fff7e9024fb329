"""What is computed from claims, computed again: for whoever doubts what was kept of it."""

from functools import partial
from typing import Final

from holdfast.domain.errors import Internal
from holdfast.domain.histories import Rebuilt
from holdfast.domain.resolutions import Fold
from holdfast.ports import Known, Store, Tx
from holdfast.services.observation_projections import computed

# So many entities in one transaction: others want to write, too.
_AT_ONCE: Final = 64


async def rebuilt(store: Store) -> Rebuilt:
    """Compute everything anew, and put right what differs from it."""
    entities, after = 0, 0
    differences: list[str] = []
    while True:
        last, count, found = await store.write(partial(_some, after=after))
        entities += count
        differences += found
        if last is None:
            break
        after = last
    astray = await store.write(lambda tx: tx.projections.sweep())
    if astray:
        differences.append(f"{astray} rows belonged to no entity, or to another session.")
    return Rebuilt(entities=entities, differences=tuple(differences))


async def _some(tx: Tx, after: int) -> tuple[int | None, int, list[str]]:
    keys = await tx.observations.keys(after, _AT_ONCE)
    found = []
    for key in keys:
        # One that is damaged does not keep the others from being put right.
        try:
            known = await tx.observations.proven(key)
            differs = await _anew(tx, known)
        except Internal as error:
            found.append(error.message)
        else:
            told = f"What was kept of {known.entity_id} is not what its claims come to."
            found += [told] if differs else []
    return (keys[-1] if keys else None), len(keys), found


async def _anew(tx: Tx, known: Known) -> bool:
    fold = Fold(known.subject)
    for row in sorted(await tx.observations.since(known, 1), key=lambda each: each.place):
        fold.add(row)
    anew = computed(fold)
    return await tx.projections.mend(known, anew.projection, anew.body)
