"""Who is asked before a call runs: the whole table, and what was said before."""

from itertools import product

from holdfast.domain.approvals import (
    EARLIER,
    RULES,
    ApprovalContext,
    ApprovalMode,
    ApprovalState,
    ModeRule,
    Question,
    Ruling,
    decide_approval,
)
from holdfast.domain.ids import ApprovalId
from holdfast.domain.tools import ToolClass
from tests.engine.stand_ins import an_approval
from tests.marks import each_case

YES, ASK, NO = ModeRule.YES, ModeRule.ASK, ModeRule.NO

# Columns: read, write, sensitive write, process, egress, commit, function, money.
TABLE = {
    ApprovalMode.DENY: [YES, NO, NO, NO, NO, NO, NO, ASK],
    ApprovalMode.ASK: [YES, ASK, ASK, ASK, ASK, ASK, YES, ASK],
    ApprovalMode.EDITS: [YES, YES, ASK, ASK, ASK, ASK, YES, ASK],
    ApprovalMode.AUTO: [YES, YES, ASK, YES, YES, ASK, YES, ASK],
}
CLASSES = [
    ToolClass.READ,
    ToolClass.WRITE,
    ToolClass.SENSITIVE_WRITE,
    ToolClass.PROCESS,
    ToolClass.EGRESS,
    ToolClass.COMMIT,
    ToolClass.FUNCTION,
    ToolClass.MONEY,
]
ONE_BY_ONE = {ToolClass.SENSITIVE_WRITE, ToolClass.COMMIT, ToolClass.MONEY}
EVERYTHING = list(product(ApprovalMode, ToolClass))


def test_the_table_is_the_contracts_and_total() -> None:
    assert {
        (mode, of): rule
        for mode, rules in TABLE.items()
        for of, rule in zip(CLASSES, rules, strict=True)
    } == RULES
    assert set(RULES) == set(EVERYTHING)
    assert set(EARLIER) == set(ApprovalState)


def a_question(of: ToolClass) -> Question:
    return Question(
        id=ApprovalId("q"), tool="tool", tool_class=of, question="May I?", digest="d", memory="m"
    )


AT_ONCE = {YES: Ruling.RUN, ASK: Ruling.ASK, NO: Ruling.DENIED_BY_MODE}


@each_case(("mode", "of"), EVERYTHING)
def test_a_mode_decides_about_what_was_never_asked(mode: ApprovalMode, of: ToolClass) -> None:
    assert (
        decide_approval(a_question(of), ApprovalContext(mode=mode), None)
        is AT_ONCE[RULES[mode, of]]
    )


@each_case(("mode", "of"), EVERYTHING)
def test_a_tightened_tool_is_asked_about_where_the_mode_says_yes(
    mode: ApprovalMode, of: ToolClass
) -> None:
    expected = Ruling.DENIED_BY_MODE if RULES[mode, of] is NO else Ruling.ASK

    assert decide_approval(a_question(of), ApprovalContext(mode=mode), "ask") is expected
    # A word that nobody knows does not loosen anything.
    assert decide_approval(a_question(of), ApprovalContext(mode=mode), "whatever") is expected


@each_case(("mode", "of"), EVERYTHING)
def test_a_forbidden_tool_never_runs_whatever_was_allowed(
    mode: ApprovalMode, of: ToolClass
) -> None:
    earlier = an_approval(a_question(of), ApprovalState.ALLOWED)
    standing = ApprovalContext(mode=mode, earlier=earlier, is_remembered=True)

    assert decide_approval(a_question(of), standing, "deny") is Ruling.DENIED_BY_MODE


@each_case("tightened", [None, "ask"])
@each_case(("mode", "of"), EVERYTHING)
def test_what_is_remembered_runs_but_for_what_is_asked_one_by_one(
    mode: ApprovalMode, of: ToolClass, tightened: str | None
) -> None:
    standing = ApprovalContext(mode=mode, is_remembered=True)
    unremembered = decide_approval(a_question(of), ApprovalContext(mode=mode), tightened)

    found = decide_approval(a_question(of), standing, tightened)
    if unremembered is Ruling.ASK and of not in ONE_BY_ONE:
        assert found is Ruling.RUN
    else:
        assert found is unremembered


@each_case("tightened", [None, "ask"])
@each_case("state", ApprovalState)
@each_case(("mode", "of"), EVERYTHING)
def test_an_earlier_answer_counts_where_somebody_would_be_asked(
    mode: ApprovalMode, of: ToolClass, state: ApprovalState, tightened: str | None
) -> None:
    earlier = an_approval(a_question(of), state)
    standing = ApprovalContext(mode=mode, earlier=earlier, is_remembered=True)
    at_once = decide_approval(a_question(of), ApprovalContext(mode=mode), tightened)

    found = decide_approval(a_question(of), standing, tightened)
    if at_once is Ruling.ASK:
        assert found is EARLIER[state]
    elif at_once is Ruling.RUN and state is ApprovalState.DENIED:
        # Somebody has said no to this very call; a looser mode does not take that back.
        assert found is Ruling.DENIED_BY_USER
    else:
        assert found is at_once


@each_case("tightened", [None, "ask"])
@each_case(("mode", "of"), EVERYTHING)
def test_where_nobody_can_be_asked_nobody_is(
    mode: ApprovalMode, of: ToolClass, tightened: str | None
) -> None:
    attended = decide_approval(a_question(of), ApprovalContext(mode=mode), tightened)

    found = decide_approval(
        a_question(of), ApprovalContext(mode=mode, is_attended=False), tightened
    )
    assert found is (Ruling.UNATTENDED if attended is Ruling.ASK else attended)


@each_case("state", sorted(set(ApprovalState) - {ApprovalState.WAITING}))
def test_an_answer_that_is_there_counts_although_nobody_is(state: ApprovalState) -> None:
    earlier = an_approval(a_question(ToolClass.WRITE), state)
    standing = ApprovalContext(mode=ApprovalMode.ASK, earlier=earlier, is_attended=False)

    assert decide_approval(a_question(ToolClass.WRITE), standing, None) is EARLIER[state]


@each_case("is_remembered", [False, True])
@each_case("of", [ToolClass.WRITE, ToolClass.COMMIT, ToolClass.MONEY])
def test_a_question_that_waits_where_nobody_is_is_as_good_as_none(
    of: ToolClass, is_remembered: bool
) -> None:
    waiting = ApprovalContext(
        mode=ApprovalMode.ASK,
        earlier=an_approval(a_question(of)),
        is_remembered=is_remembered,
        is_attended=False,
    )

    found = decide_approval(a_question(of), waiting, None)
    is_covered = is_remembered and of not in ONE_BY_ONE
    assert found is (Ruling.RUN if is_covered else Ruling.UNATTENDED)
