"""Runs a workflow: consecutive nodes of one agent are a session, each node is a turn of it."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.cli.agent_files import read_agent_file, resolve_agent, store_agent
from holdfast.cli.approval_policy import attendance_policy
from holdfast.cli.chat.conversation import ChatConversation, SignalHandler
from holdfast.cli.chat.session import open_conversation
from holdfast.cli.connect import connect
from holdfast.cli.errors import INTERRUPTED, turn_code
from holdfast.cli.options import ChatOptions
from holdfast.cli.output import Printer
from holdfast.cli.secrets import secrets_here
from holdfast.cli.workspace import working_dir
from holdfast.config import absolute_model
from holdfast.domain.agents import Agent
from holdfast.domain.messages import Role
from holdfast.domain.turns import turns
from holdfast.parsing.agent_files import AgentFile, build_agent
from holdfast.services.session_create import narrow_agent
from holdfast.workflows.model import AgentRun, Workflow, agent_runs

if TYPE_CHECKING:
    from holdfast.api import Holdfast
    from holdfast.cli.approval_policy import AttendancePolicy
    from holdfast.cli.options import RunOptions


# Few rows follow an answer, so the end of the log is enough.
READ_BACK: Final = 50


async def run_workflow(printer: Printer, workflow: Workflow, run_options: "RunOptions") -> int:
    """Run a workflow and return the exit code of its last turn."""
    # Everything is validated first, so that a workflow is not left half run.
    line = agent_runs(workflow)
    brought = referenced_agents(workflow, run_options.file)
    folder = resolve_folder(printer, run_options.cwd)
    signals = SignalHandler()
    policy = attendance_policy(printer, run_options.yes_to)
    try:
        with signals:
            async with connect(printer, "own", policy=policy) as holdfast:
                home = printer.settings.load().home
                agents = await _agents(holdfast, line, brought, folder=folder, home=home)
                run = _WorkflowRun(printer, holdfast, signals, policy, run_options)
                return await run.play(list(zip(line, agents, strict=True)))
    except asyncio.CancelledError:
        # Cancelled by other code than our signal handler: must not be swallowed.
        if not signals.is_leaving:
            raise
        return INTERRUPTED


class _WorkflowRun:
    """State that is shared by all nodes of a run."""

    def __init__(
        self,
        printer: Printer,
        holdfast: "Holdfast",
        signals: SignalHandler,
        policy: "AttendancePolicy",
        run_options: "RunOptions",
    ) -> None:
        self._printer = printer
        self._holdfast = holdfast
        self._signals = signals
        self._policy = policy
        self._run_options = run_options

    async def play(self, line: list[tuple[AgentRun, Agent]]) -> int:
        """Run the agent runs in order; a turn without an answer ends the workflow."""
        answer = ""
        for stretch, agent in line:
            conversation = await self._opened(stretch, agent)
            for number, step in enumerate(stretch.steps):
                said = [answer, step.prompt] if number == 0 else [step.prompt]
                self._printer.remark(
                    f"{step.node}: agent {agent.slug}, session {conversation.session_id}"
                )
                await conversation.say("\n\n".join(filter(None, said)))
                found = await _answer(conversation)
                if found is None or conversation.has_finished():
                    return self._stopped(conversation, step.node)
                answer = found
        return 0

    async def _opened(self, stretch: AgentRun, agent: Agent) -> ChatConversation:
        run_options = self._run_options
        options = ChatOptions(
            agent=agent.id,
            model=run_options.model,
            cwd=run_options.cwd,
            tools=None if stretch.tools is None else ",".join(stretch.tools),
        )
        conversation = await open_conversation(
            self._printer, self._holdfast, options, self._signals, self._policy
        )
        await conversation.catch_up()
        return conversation

    def _stopped(self, conversation: ChatConversation, node: str) -> int:
        self._printer.remark(
            f"Stopped at {node}; continue with `holdfast chat --resume {conversation.session_id}`."
        )
        if self._signals.is_leaving or conversation.last is None:
            return INTERRUPTED
        # A turn may succeed without an answer; then the next node has no input.
        return turn_code(conversation.last) or 1


async def _answer(conversation: ChatConversation) -> str | None:
    """Return the answer of the turn that has just settled; None if it has none."""
    holdfast = conversation.holdfast
    session = await conversation.session()
    page = await holdfast.messages.list(
        holdfast.owner, session.id, after=max(session.message_count - READ_BACK, 0)
    )
    past = [turn for turn in turns(page.items) if turn.number == session.settled]
    if not past or not past[0].is_answered:
        return None
    spoken = [row.text for row in past[0].messages if row.role is Role.ASSISTANT]
    return spoken[-1]


async def _agents(
    holdfast: "Holdfast",
    line: tuple[AgentRun, ...],
    brought: dict[str, AgentFile],
    *,
    folder: Path | None,
    home: Path,
) -> list[Agent]:
    """Return the stored agent of each run: the workflow's own, else the one of that name."""
    found = []
    for stretch in line:
        described = brought.get(stretch.agent_ref)
        if described is not None:
            agent = await store_agent(holdfast, described)
        else:
            named = await resolve_agent(holdfast, stretch.agent_ref, folder=folder, home=home)
            agent = await holdfast.agents.get(holdfast.owner, named)
        # Here, and not when its session opens, because earlier sessions would have run by then.
        narrow_agent(agent, stretch.tools)
        found.append(agent)
    return found


def resolve_folder(printer: Printer, cwd: Path | None = None) -> Path | None:
    """Return the working folder; None if it is on a server."""
    folder = None if printer.settings.server is not None else working_dir(cwd)
    return None if folder is None else Path(folder)


def referenced_agents(workflow: Workflow, file: str) -> dict[str, AgentFile]:
    """Return the agents defined in a workflow, and those of the files it refers to."""
    folder = Path(file).absolute().parent
    scrubber = secrets_here().scrubber
    found: dict[str, AgentFile] = {}
    for each in workflow.body.get("agents", ()):
        described = (
            read_agent_file(folder / each["$ref"])
            if "$ref" in each
            else build_agent(each, where=file, scrubber=scrubber).with_models(
                lambda ref: absolute_model(ref, folder=folder)
            )
        )
        found[described.slug] = described
    return found
