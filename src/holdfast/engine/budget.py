"""Budget: check the maximum cost of the next request before it is sent."""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.domain.approvals import Question, Ruling, digest_call
from holdfast.domain.costs import Usage, price
from holdfast.domain.drafts import CostDraft, MessageDraft, Outcome
from holdfast.domain.events import Failure, FailureCode
from holdfast.domain.ids import ApprovalId
from holdfast.domain.messages import Notice, NoticeCode, Role
from holdfast.domain.models import Model, TokenPrices
from holdfast.domain.sessions import OnExceed, StopReason
from holdfast.domain.tools import ToolClass
from holdfast.engine.attachments import media_tokens
from holdfast.engine.streaming import ModelAnswer
from holdfast.engine.tool_approval import permit
from holdfast.engine.turn_state import MESSAGE_TOKENS, TurnState
from holdfast.ports.llm import Failed, LlmMessage, LlmRequest, LlmTool

# Output limit under a budget for a model whose own maximum is unknown.
ANSWER_TOKENS: Final = 4_096
# A request is not sent if the budget leaves less output than this.
USEFUL_TOKENS: Final = 1_024
# Upper bounds of the tokens that providers add to each tool and before all messages.
TOOL_TOKENS: Final = 128
PREAMBLE_TOKENS: Final = 1_024
_MILLION: Final = 1_000_000


class Need(Struct, frozen=True, kw_only=True):
    """Maximum input tokens of a request, and its output limit if it has one."""

    model: Model
    input: int
    output: int | None = None


class Estimate(Struct, frozen=True, kw_only=True):
    """Cost of the session so far and after the next request; `None` without a price."""

    spent: int
    projected: int | None


def need_of(state: TurnState, request: LlmRequest) -> Need:
    """Return the maximum size of a request with the turn's conversation."""
    need = need_aside(request)
    known = state.last_usage
    if known is None or state.last_model != request.model.id:
        return need
    counted = known.input + known.cache_read + known.cache_write + known.output
    # The prompt and the tools may have changed between two turns.
    counted += 0 if state.has_asked else _count_fixed_tokens(request)
    fresh = sum(_count_media_tokens(request.model, message) for message in _tail(request.messages))
    return replace(need, input=min(need.input, counted + state.uncounted + fresh))


def need_aside(request: LlmRequest) -> Need:
    """Return the maximum size of a request, without usage of earlier requests."""
    tokens = _count_fixed_tokens(request) + sum(map(_count_message_tokens, request.messages))
    tokens += sum(_count_media_tokens(request.model, message) for message in request.messages)
    return Need(model=request.model, input=tokens, output=request.max_tokens)


def is_affordable(state: TurnState, need: Need) -> bool:
    """Return whether an internal request (compaction) fits into the budget."""
    if state.cap <= 0:
        return True
    found = estimate(state, need).projected
    if found is None:
        return state.turn.limits.allow_unpriced
    return found <= state.cap or _only_warns(state)


def estimate(state: TurnState, need: Need) -> Estimate:
    """Return the session's cost after a request with a useful answer."""
    prices, spent = _prices(need), state.spent + state.tree.below
    if prices is None:
        return Estimate(spent=spent, projected=None)
    least = min(need.output or USEFUL_TOKENS, USEFUL_TOKENS)
    if _only_warns(state):
        # No output limit is sent, so use the expected output instead of the useful minimum.
        least = need.output or ANSWER_TOKENS
    cost = _input_cost(need, prices) + _output_cost(least, prices)
    return Estimate(spent=spent, projected=spent + cost)


def output_limit(state: TurnState, need: Need) -> int | None:
    """Return the output limit of a request; `None` if it has none."""
    left = _output_left(state, need)
    if left is None:
        return need.output
    return max(1, min(need.output or need.model.max_output or ANSWER_TOKENS, left))


def is_cut_by_budget(state: TurnState, need: Need) -> bool:
    """Return whether the budget determines the output limit."""
    left = _output_left(state, need)
    return left is not None and output_limit(state, need) == max(1, left)


def charge(state: TurnState, need: Need, answer: ModelAnswer, request_id: str) -> CostDraft | None:
    """Return the ledger entry of a request; `None` if it was not sent.

    Under a budget a request with unknown usage is charged its maximum cost: otherwise a missing
    report or a broken connection would make requests free. It counts as unpriced. A request that
    the provider refused costs nothing.
    """
    end = answer.end
    if isinstance(end, Failed) and not end.sent:
        return None
    usage = Usage() if isinstance(end, Failed) else end.usage
    draft = CostDraft(request_id=request_id, model_id=need.model.id, usage=usage)
    prices = need.model.prices
    if prices is None:
        return draft
    if usage is None or (isinstance(end, Failed) and (end.billed or _has_output(answer))):
        return replace(draft, usage=None, microcents=bound_of(state, need))
    if state.cap > 0 and not usage.output and _has_output(answer):
        # Only the input was reported.
        whole = replace(usage, output=_output_bound(need))
        return replace(draft, usage=None, microcents=price(whole, prices))
    return replace(draft, microcents=price(usage, prices), priced=True)


def bound_of(state: TurnState, need: Need) -> int:
    """Return the maximum cost of a request in micro-cents; 0 without a budget or a price."""
    prices = _prices(need)
    if prices is None or state.cap <= 0:
        return 0
    return _input_cost(need, prices) + _output_cost(_output_bound(need), prices)


def _prices(need: Need) -> TokenPrices | None:
    """Return the prices of a request of the largest size that it may have."""
    prices = need.model.prices
    return None if prices is None else prices.for_input(need.input)


def _output_bound(need: Need) -> int:
    # The limit and not the received text: a model may have thought, which is not always sent.
    return need.output or need.model.max_output or ANSWER_TOKENS


def _only_warns(state: TurnState) -> bool:
    return state.turn.budget is not None and state.turn.budget.on_exceed is OnExceed.WARN


def _output_left(state: TurnState, need: Need) -> int | None:
    """Return the output tokens that the budget can pay for; `None` if it sets no limit."""
    prices = _prices(need)
    if state.cap <= 0 or _only_warns(state) or prices is None or not prices.output:
        return None
    money = state.cap - state.spent - state.tree.below
    if state.tree.room is not None:
        money = min(money, state.tree.room)
    money -= _input_cost(need, prices)
    return max(0, money) * _MILLION // prices.output


def _input_cost(need: Need, prices: TokenPrices) -> int:
    # Every token at the highest price: cache reads and writes are known only afterwards.
    dearest = max(prices.input, prices.cache_read, prices.cache_write)
    return -(-need.input * dearest // _MILLION)


def _output_cost(tokens: int, prices: TokenPrices) -> int:
    return -(-tokens * prices.output // _MILLION)


def _has_output(answer: ModelAnswer) -> bool:
    return bool(answer.text or answer.reasoning or answer.calls)


def _count_fixed_tokens(request: LlmRequest) -> int:
    return (
        PREAMBLE_TOKENS + _bytes(request.system or "") + sum(map(_count_tool_tokens, request.tools))
    )


def _tail(messages: Sequence[LlmMessage]) -> Sequence[LlmMessage]:
    """Return the messages after the model's last one."""
    spoken = [place for place, each in enumerate(messages, start=1) if each.role == "assistant"]
    return messages[spoken[-1] :] if spoken else messages


def _count_message_tokens(message: LlmMessage) -> int:
    texts = [message.text, message.name or "", message.call_id or ""]
    for thought in message.reasoning:
        texts += [thought.text, thought.signature or ""]
    for call in message.calls:
        texts += [call.id, call.name]
    called = sum(MESSAGE_TOKENS + _encoded(call.arguments) for call in message.calls)
    return MESSAGE_TOKENS + sum(map(_bytes, texts)) + called


def _count_tool_tokens(tool: LlmTool) -> int:
    return TOOL_TOKENS + _bytes(tool.name) + _bytes(tool.description) + _encoded(tool.parameters)


def _count_media_tokens(model: Model, message: LlmMessage) -> int:
    return sum(media_tokens(model, each) for each in message.media)


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _encoded(value: object) -> int:
    return len(msgspec.json.encode(value))


_SPENT_ABOVE: Final = "The budget of a session that has started this one is used up."


async def check_budget(
    state: TurnState, need: Need | None, new_id: Callable[[], str]
) -> Outcome | None:
    """Return the outcome if the budget refuses a request; may ask for a higher budget.

    Without `need` the request is not known, and the budget must only have something left.
    """
    budget = state.turn.budget
    if budget is None or state.cap <= 0:
        return None
    if state.turn.tree is not None:
        # Before each request, because the other sessions of the tree are at work as well.
        state.tree = await state.turn.tree()
    spent = state.spent + state.tree.below
    found = estimate(state, need) if need else Estimate(spent=spent, projected=spent + 1)
    if found.projected is None:
        return await _unpriced(state, need.model) if need else None
    room = state.tree.room
    has_room = room is None or found.projected - found.spent <= room
    if found.projected <= state.cap and has_room:
        return None
    if not has_room or budget.on_exceed is OnExceed.FAIL:
        # Not a question: a budget above can be raised only where it was set.
        return _spent_outcome(state, found) if has_room else _budget_outcome(_SPENT_ABOVE)
    if budget.on_exceed is OnExceed.PAUSE:
        return await _ask(state, found, new_id)
    # Once for each exceeded budget, because the cost of a session never decreases.
    if not _is_said(state, NoticeCode.BUDGET_WARNING, _cap_phrase(state)):
        await state.emit((_notice(NoticeCode.BUDGET_WARNING, _budget_notice(state, found)),))
    return None


async def _unpriced(state: TurnState, model: Model) -> Outcome | None:
    if not state.turn.limits.allow_unpriced:
        return _budget_outcome(
            f"{model.ref} has no known price, and the configuration does not allow that."
        )
    if not _is_said(state, NoticeCode.UNPRICED_MODEL, ""):
        said = f"{model.ref} has no known price, so the session's budget cannot cover it."
        await state.emit((_notice(NoticeCode.UNPRICED_MODEL, said),))
    return None


def _is_said(state: TurnState, code: NoticeCode, ending: str) -> bool:
    return any(
        isinstance(part, Notice) and part.code is code and part.text.endswith(ending)
        for row in state.rows
        for part in row.parts
    )


async def _ask(state: TurnState, found: Estimate, new_id: Callable[[], str]) -> Outcome | None:
    """Ask for approval to raise the cap by the amount in the question."""
    once = state.turn.budget.microcents if state.turn.budget else 0
    missing = (found.projected or 0) - state.cap
    # Whole multiples of the budget that cover the request in question.
    amount = once * max(1, -(-missing // once))
    arguments = {"turn": state.turn.turn, "cap": state.cap, "amount": amount}
    question = Question(
        id=ApprovalId(new_id()),
        tool="budget",
        tool_class=ToolClass.MONEY,
        arguments=arguments,
        question=f"{_budget_notice(state, found)} Add {_usd(amount)} and continue?",
        # Without the estimated cost, so that the same question is found again after a restart.
        digest=digest_call("budget", arguments, "", ()),
        amount=amount,
    )
    if (await permit(state, question)).how is not Ruling.RUN:
        return _spent_outcome(state, found)
    state.cap += amount
    return None


def _spent_outcome(state: TurnState, found: Estimate) -> Outcome:
    return _budget_outcome(
        f"{_budget_notice(state, found)} Raise the session's budget to continue."
    )


def _budget_outcome(message: str) -> Outcome:
    failure = Failure(code=FailureCode.BUDGET_EXCEEDED, message=message)
    return Outcome(stop_reason=StopReason.BUDGET, failure=failure)


def _budget_notice(state: TurnState, found: Estimate) -> str:
    return (
        f"The session has cost {_usd(found.spent)}; with the next request it could "
        f"cost {_usd(found.projected or 0)}, {_cap_phrase(state)}"
    )


def _cap_phrase(state: TurnState) -> str:
    return f"and its budget is {_usd(state.cap)}."


def _usd(microcents: int) -> str:
    return f"${microcents / 100_000_000:.4f}"


def _notice(code: NoticeCode, text: str) -> MessageDraft:
    return MessageDraft(role=Role.SYSTEM, parts=(Notice(code=code, text=text),))
