"""`holdfast workflow validate|format|run`: workflow files, `.relavium.yaml`."""

import asyncio
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from msgspec.structs import replace

from holdfast.api import Holdfast
from holdfast.cli.agent_files import (
    find_agent_file,
    read_agent_file,
    read_named_agent_file,
    resolve_agent,
    store_agent,
)
from holdfast.cli.approval_policy import AttendancePolicy, attendance_policy
from holdfast.cli.chat.conversation import ChatConversation, SignalHandler
from holdfast.cli.chat.session import open_conversation
from holdfast.cli.command import add_group, command
from holdfast.cli.connect import connect
from holdfast.cli.errors import FINDINGS, INTERRUPTED, turn_code
from holdfast.cli.files import write_file
from holdfast.cli.options import YES_TO_HELP, ChatOptions, WorkflowArgument, flag, option
from holdfast.cli.output import Printer
from holdfast.cli.secrets import secrets_here
from holdfast.cli.workspace import working_dir
from holdfast.config import absolute_model
from holdfast.domain.agents import AcpRuntime, Agent, LlmRuntime, narrow_agent, override_agent
from holdfast.domain.costs import CostQuery
from holdfast.domain.errors import Code, Invalid, NotFound
from holdfast.domain.messages import Role
from holdfast.domain.sessions import Session, SessionRequest
from holdfast.domain.tools import ALWAYS, FsTier, Grant, narrow
from holdfast.domain.turns import group_by_turn
from holdfast.parsing.agent_files import AgentFile, build_agent
from holdfast.parsing.workflow_files import (
    parse_workflow,
    read_inputs,
    read_workflow,
    read_workflow_text,
    write_workflow,
)
from holdfast.parsing.yaml import WRITTEN_LARGEST
from holdfast.wiring import ceiling_of
from holdfast.workflows.checks import check, find_unresolved, has_tool
from holdfast.workflows.model import (
    CONTEXT,
    INPUTS,
    OUTPUTS,
    AgentRun,
    Reference,
    Workflow,
    agent_runs,
    budget_of,
    context_values,
    fill,
    grant_of,
    policy_of,
)

app = typer.Typer()
group = add_group(app, "workflow")


STDIN: Final = "-"


@command(group, "validate")
async def validate(printer: Printer, *, file: WorkflowArgument) -> int:
    """Check a workflow.

    A file that cannot be parsed is an error; content that has no effect is a finding. Exits with 1
    if there are findings.
    """
    workflow = read(file)
    findings = check(workflow, await _known_agents(printer, workflow, file))
    why = _why_not_runnable(workflow)
    form = {
        "file": file,
        "id": workflow.id,
        "nodes": len(workflow.nodes),
        "edges": len(workflow.edges),
        "findings": findings,
        "runnable": why is None,
        "why": why,
    }
    if printer.is_json:
        printer.document(form)
    else:
        for each in findings:
            printer.line(f"{each.code} at {each.node}: {each.message}.")
        printer.line(
            f"{file} is a valid workflow, {workflow.id}, with {len(workflow.nodes)} nodes."
        )
        printer.remark(why or "`holdfast workflow run` can run it.")
    return FINDINGS if findings else 0


@command(group, "format")
def format_file(
    printer: Printer,
    *,
    file: WorkflowArgument,
    write: Annotated[
        bool, flag("Write the result to the file; comments are lost.", "--write")
    ] = False,
    check: Annotated[
        bool, flag("Only check whether the file is in canonical form.", "--check")
    ] = False,
) -> int:
    """Print a workflow in canonical form.

    Keys are sorted and lists keep their order, so equal workflows give equal files. With --check it
    exits with 1 if the file is not in canonical form.
    """
    if check and write:
        raise Invalid(Code.INVALID_INPUT, "Choose one of --check and --write.")
    if write and file == STDIN:
        raise Invalid(Code.INVALID_INPUT, "--write requires a file name.")
    before = _text(file)
    text = write_workflow(parse(before, file))
    is_same = text == before
    if write and not is_same:
        write_file(Path(file), text.encode(), force=True)
    if not (check or write or printer.is_json):
        # Raw UTF-8 without terminal cleaning, because the output is meant for a file.
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode())
        return 0
    state = "is in canonical form" if is_same or write else "is not in canonical form"
    form = {"file": file, "formatted": is_same, "written": write and not is_same}
    printer.done(form, f"{file} {state}.")
    return FINDINGS if check and not is_same else 0


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options for running a workflow."""

    file: WorkflowArgument
    input: Annotated[
        list[str] | None, option("NAME=VALUE", "The value of an input; repeatable.")
    ] = None
    cwd: Annotated[
        Path | None, option("DIR", "Work in this folder instead of the current one.")
    ] = None
    model: Annotated[str | None, option("P:N", "The model to try first, provider:name.")] = None
    yes_to: Annotated[list[str] | None, option("TOOL", YES_TO_HELP, "--yes-to")] = None


@command(group, "run")
async def run(printer: Printer, options: RunOptions) -> int:
    """Run a workflow: a sequence of nodes from input to output.

    The turns of its agents run in ordinary sessions, which are saved and can be resumed. A workflow
    that cannot be run is refused before the first turn. The exit code is that of the last turn.
    """
    workflow = read(options.file)
    return await run_workflow(printer, workflow, options)


def read(file: str) -> Workflow:
    """Return the workflow of a file, or of stdin."""
    if file == STDIN:
        return parse(_text(file), file)
    return read_workflow(Path(file), secrets_here().scrubber)


def parse(text: str, where: str) -> Workflow:
    """Return the workflow of a text."""
    return parse_workflow(text, where=where, scrubber=secrets_here().scrubber)


def _text(file: str) -> str:
    """Return the text of a file unchanged; the parser reports invalid content."""
    if file != STDIN:
        return read_workflow_text(Path(file))
    content = sys.stdin.buffer.read(WRITTEN_LARGEST + 1) if sys.stdin is not None else b""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Invalid(
            Code.YAML_INVALID, "stdin is not UTF-8 text; convert it first.", {"file": file}
        ) from None


def _why_not_runnable(workflow: Workflow) -> str | None:
    try:
        agent_runs(workflow)
    except Invalid as error:
        return error.message
    return None


async def _known_agents(
    printer: Printer, workflow: Workflow, file: str
) -> dict[str, dict[str, Any]]:
    """Return the agents that a workflow names but does not define, by name."""
    known = {ref: capabilities(each) for ref, each in referenced_agents(workflow, file).items()}
    missing = [ref for ref in find_unresolved(workflow) if ref not in known]
    # The store is opened only if needed: checking a file should have no side effects.
    if not missing:
        return known
    async with connect(printer) as holdfast:
        for ref in missing:
            with suppress(NotFound):
                known[ref] = capabilities(await _find_agent(printer, holdfast, ref))
    return known


async def _find_agent(printer: Printer, holdfast: Holdfast, ref: str) -> Agent | AgentFile:
    file = find_agent_file(ref, resolve_folder(printer), printer.settings.load().home)
    if file is None:
        return await holdfast.agents.get(holdfast.owner, ref)
    return read_named_agent_file(ref, file)


# Few rows follow an answer, so the end of the log is enough.
READ_BACK: Final = 50


async def run_workflow(printer: Printer, workflow: Workflow, run_options: RunOptions) -> int:
    """Run a workflow and return the exit code of its last turn."""
    # Everything is validated first, so that a workflow is not left half run.
    templates = agent_runs(workflow)
    inputs = read_inputs(workflow, _parse_inputs(run_options.input or ()))
    context = context_values(workflow, inputs)
    values = {(INPUTS, name): text for name, text in inputs.items()}
    values |= {(CONTEXT, key): text for key, text in context.items()}
    runs = tuple(each.with_values(values) for each in templates)
    brought = referenced_agents(workflow, run_options.file)
    folder = resolve_folder(printer, run_options.cwd)
    signals = SignalHandler()
    policy = attendance_policy(printer, run_options.yes_to)
    try:
        with signals:
            async with connect(printer, "own", policy=policy) as holdfast:
                home = printer.settings.load().home
                agents = await _agents(holdfast, runs, brought, folder=folder, home=home)
                plan = RunPlan(workflow, context, ceiling=_ceiling(printer))
                model, near = run_options.model, _folder_of(run_options.file)
                parts = [
                    (await _prepare(holdfast, each, agent, plan, model=model, near=near), agent)
                    for each, agent in zip(runs, agents, strict=True)
                ]
                workflow_run = _WorkflowRun(printer, holdfast, signals, policy, run_options)
                return await workflow_run.run(parts, plan, values)
    except asyncio.CancelledError:
        # Cancelled by other code than our signal handler: must not be swallowed.
        if not signals.is_leaving:
            raise
        return INTERRUPTED


class RunPlan:
    """What holds for all sessions of a run; the budget is what is left of it."""

    def __init__(
        self, workflow: Workflow, context: Mapping[str, str], *, ceiling: Grant | None
    ) -> None:
        policy = policy_of(workflow)
        self.context = context
        self.allowed_tools: list[str] | None = policy.get("allowedTools")
        self.tier = FsTier(policy["fsScopeTier"]) if "fsScopeTier" in policy else None
        self.grant = grant_of(workflow)
        self.budget = budget_of(workflow)
        # None if only the server knows what its configuration allows.
        self.ceiling = ceiling

    def spend(self, microcents: int) -> None:
        """Reduce the budget; one that is used up is never 0, because that means no budget."""
        if self.budget is not None:
            left = max(self.budget.microcents - microcents, 1)
            self.budget = replace(self.budget, microcents=left)


def _parse_inputs(words: Sequence[str]) -> dict[str, str]:
    given: dict[str, str] = {}
    for word in words:
        name, sign, value = word.partition("=")
        if not sign or not name or name in given:
            raise Invalid(Code.INVALID_INPUT, "Write each input once, as --input NAME=VALUE.")
        given[name] = value
    return given


def _ceiling(printer: Printer) -> Grant | None:
    return None if printer.settings.server is not None else ceiling_of(printer.settings.load())


class _WorkflowRun:
    """State that is shared by all nodes of a run."""

    def __init__(
        self,
        printer: Printer,
        holdfast: Holdfast,
        signals: SignalHandler,
        policy: AttendancePolicy,
        run_options: RunOptions,
    ) -> None:
        self._printer = printer
        self._holdfast = holdfast
        self._signals = signals
        self._policy = policy
        self._run_options = run_options

    async def run(
        self,
        runs: list[tuple[AgentRun, Agent]],
        plan: RunPlan,
        values: dict[Reference, str],
    ) -> int:
        """Run the agent runs in order; a turn without an answer ends the workflow."""
        answer = ""
        for run, agent in runs:
            conversation = await self._open(run, agent, plan)
            opened = await conversation.session()
            for number, step in enumerate(run.steps):
                await self._choose_model(conversation, run, number)
                # A prompt that refers to an earlier answer already contains its position.
                is_first = number == 0 and not step.uses_outputs
                said = [answer if is_first else "", fill(step.prompt, values)]
                self._printer.remark(f"{step.node}: agent {agent.slug}, session {opened.id}")
                await conversation.say("\n\n".join(filter(None, said)))
                found = await _answer(conversation)
                if found is None or conversation.has_finished():
                    return self._report_stop(conversation, step.node)
                values[OUTPUTS, step.node] = answer = found
            plan.spend(await self._cost(conversation, opened))
        return 0

    async def _open(self, run: AgentRun, agent: Agent, plan: RunPlan) -> ChatConversation:
        run_options = self._run_options
        options = ChatOptions(
            agent=agent.id,
            model=run_options.model or run.steps[0].model,
            cwd=run_options.cwd,
            tools=None if run.tools is None else ",".join(run.tools),
            fs_scope=plan.tier,
            # Only these, because a session's variables are short and shown in its first event.
            var=[f"{key}={text}" for key, text in plan.context.items() if _uses(agent, key)],
        )
        request = SessionRequest(grant=plan.grant, budget=plan.budget, overrides=run.overrides)
        conversation = await open_conversation(
            self._printer, self._holdfast, options, self._signals, self._policy, request=request
        )
        await conversation.catch_up()
        return conversation

    async def _choose_model(
        self, conversation: ChatConversation, run: AgentRun, number: int
    ) -> None:
        """Change the session's model if the node has another one than the node before it."""
        model = run.steps[number].model
        if number and model != run.steps[number - 1].model:
            holdfast = self._holdfast
            await holdfast.sessions.update(
                holdfast.owner, conversation.session_id, {"model": model}
            )

    async def _cost(self, conversation: ChatConversation, opened: Session) -> int:
        """Return the cost of a session, less what its user has added to its budget."""
        holdfast = self._holdfast
        query = CostQuery(owner=holdfast.owner, session_id=opened.id)
        cost = (await holdfast.costs.report(query)).total.microcents
        now = (await conversation.session()).budget
        if now is None or opened.budget is None:
            return cost
        return cost - max(now.microcents - opened.budget.microcents, 0)

    def _report_stop(self, conversation: ChatConversation, node: str) -> int:
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
    past = [turn for turn in group_by_turn(page.items) if turn.number == session.settled]
    if not past or not past[0].is_answered:
        return None
    spoken = [row.text for row in past[0].messages if row.role is Role.ASSISTANT]
    return spoken[-1]


async def _agents(
    holdfast: Holdfast,
    runs: tuple[AgentRun, ...],
    agent_files: dict[str, AgentFile],
    *,
    folder: Path | None,
    home: Path,
) -> list[Agent]:
    """Return the stored agent of each run: the workflow's own, else the one of that name."""
    found = []
    for run in runs:
        described = agent_files.get(run.agent_ref)
        if described is not None:
            agent = await store_agent(holdfast, described)
        else:
            named = await resolve_agent(holdfast, run.agent_ref, folder=folder, home=home)
            agent = await holdfast.agents.get(holdfast.owner, named)
        found.append(agent)
    return found


async def _prepare(
    holdfast: Holdfast,
    run: AgentRun,
    agent: Agent,
    plan: RunPlan,
    *,
    model: str | None,
    near: Path,
) -> AgentRun:
    """Return the run with its tools and models; refused is what its session would refuse.

    Here, and not when the session opens, because earlier sessions would have run by then. `model`
    replaces those of the nodes; the path of a script is relative to the folder `near`.
    """
    tools = _tools_of(run, agent, plan.allowed_tools)
    narrow_agent(agent, tools)
    override_agent(agent, run.overrides)
    granted = agent.grant or plan.ceiling
    if granted is not None:
        narrow(granted, replace(plan.grant or granted, fs=plan.tier or granted.fs))
    steps = []
    for step in run.steps:
        own = step.model if model is None else None
        ref = None if own is None else await _model_ref(holdfast, agent, own, near)
        steps.append(replace(step, model=ref))
    await holdfast.models.check(*(step.model for step in steps if step.model is not None))
    return replace(run, tools=tools, steps=tuple(steps))


def _uses(agent: Agent, key: str) -> bool:
    return f"{{{{ctx.{key}}}}}" in agent.system_prompt


def _tools_of(run: AgentRun, agent: Agent, allowed: list[str] | None) -> tuple[str, ...] | None:
    """Return the tools of a session; `None` leaves them to the agent."""
    if isinstance(agent.runtime, AcpRuntime):
        # The tools that its nodes name are those that the program has itself.
        if allowed is None and not any(step.model for step in run.steps):
            return None
        raise Invalid(
            Code.WORKFLOW_NOT_RUNNABLE,
            f"Agent {agent.slug} is a program with tools and models of its own, which "
            "tools.allowedTools and the model of a node cannot change; remove these keys, or bind "
            "another agent.",
        )
    if allowed is None or run.tools is not None:
        return run.tools
    form = capabilities(agent)
    return tuple(name for name in allowed if name not in ALWAYS and has_tool(form, name))


async def _model_ref(holdfast: Holdfast, agent: Agent, name: str, folder: Path) -> str:
    """Return a node's model as `provider:name`; a bare name is a model of the agent's provider."""
    if ":" in name:
        return absolute_model(name, folder=folder)
    chain = agent.runtime.models if isinstance(agent.runtime, LlmRuntime) else ()
    refs = {model.id: model.ref for model in await holdfast.models.list()}
    first = refs.get(chain[0].model_id) if chain else None
    provider, _, _ = (first or (await holdfast.defaults()).model).partition(":")
    return f"{provider}:{name}"


def capabilities(agent: Agent | AgentFile) -> dict[str, Any]:
    """Return the tools of an agent in the format of a file."""
    tools = [each if isinstance(each, str) else each.name for each in agent.tools]
    is_program = isinstance(agent.runtime, AcpRuntime)
    return {"tools": tools, "mcp_servers": list(agent.mcp_servers), "program": is_program}


def resolve_folder(printer: Printer, cwd: Path | None = None) -> Path | None:
    """Return the working folder; None if it is on a server."""
    folder = None if printer.settings.server is not None else working_dir(cwd)
    return None if folder is None else Path(folder)


def _folder_of(file: str) -> Path:
    return Path(file).absolute().parent


def referenced_agents(workflow: Workflow, file: str) -> dict[str, AgentFile]:
    """Return the agents defined in a workflow, and those of the files it refers to."""
    folder = _folder_of(file)
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
