"""What the next request would cost at most, and what a budget says to that."""

from math import ceil
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from holdfast.domain.costs import Usage, price
from holdfast.domain.drafts import CostDraft
from holdfast.domain.models import Model
from holdfast.domain.sessions import OnExceed
from holdfast.engine.play import Play, weight
from holdfast.engine.projection import dropped_through

ANSWER_TOKENS: Final = 4_096
BYTES_PER_TOKEN: Final = 4


class Estimate(Struct, frozen=True, kw_only=True):
    """The session's cost so far, and with the next request; absent when the model has no price."""

    spent: int
    projected: int | None


def charge(model: Model, usage: Usage | None, request_id: str) -> CostDraft:
    """Return the ledger's entry of a request; where nobody says what it cost, it is unpriced."""
    draft = CostDraft(request_id=request_id, model_id=model.id, usage=usage)
    if usage is None or model.prices is None:
        return draft
    return replace(draft, microcents=price(usage, model.prices), priced=True)


def is_affordable(play: Play, model: Model) -> bool:
    """Tell whether a request that nobody waits for fits into the budget."""
    budget = play.turn.budget
    if budget is None or not play.cap:
        return True
    found = estimate(play, model).projected
    if found is None:
        return play.turn.limits.allow_unpriced
    return found <= play.cap or budget.on_exceed is OnExceed.WARN


def estimate(play: Play, model: Model) -> Estimate:
    """Estimate what the session will have cost after one more request to that model."""
    if model.prices is None:
        return Estimate(spent=play.spent, projected=None)
    known = play.last_usage
    counted = known.input + known.cache_read + known.cache_write + known.output if known else 0
    fresh = play.uncounted if known else _size(play)
    usage = Usage(
        input=counted + ceil(fresh / BYTES_PER_TOKEN),
        output=play.settings.max_tokens or ANSWER_TOKENS,
    )
    return Estimate(spent=play.spent, projected=play.spent + price(usage, model.prices))


def _size(play: Play) -> int:
    """Return the bytes of all that a request would carry."""
    prompt = len(play.turn.agent.system_prompt.encode())
    dropped = max(map(dropped_through, play.rows), default=0)
    kept = (row for row in play.rows if row.sequence > dropped)
    return prompt + sum(weight(row.parts) for row in kept)
