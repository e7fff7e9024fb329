"""A model and tools whose every answer is luck, and that look on the disk before they act."""

from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final

from holdfast.domain.approvals import digest_call
from holdfast.domain.costs import Usage
from holdfast.domain.messages import ResultStatus
from holdfast.domain.tools import Effect, ResultCode, ToolClass
from holdfast.engine.tool_calls import refuse_call
from holdfast.ports.llm import (
    CallArguments,
    CallEnded,
    CallStarted,
    Failed,
    FailureKind,
    LlmDelta,
    LlmRequest,
    LlmTextDelta,
    LlmTool,
    StepStop,
    Stopped,
)
from holdfast.ports.tools import CallOutcome, PlannedCall, RequestedCall, ToolWorkspace
from tests.torture.simulated.disks import Mortal
from tests.torture.simulated.worlds import World

TOOLS: Final[Mapping[str, tuple[Effect, ToolClass]]] = {
    "read_file": (Effect.PURE, ToolClass.READ),
    "write_file": (Effect.IDEMPOTENT, ToolClass.WRITE),
    "run_command": (Effect.UNSAFE, ToolClass.PROCESS),
}
# Also one that another process has called unknown since, because this one was stopped too long.
STARTED: Final = "SELECT 1 FROM calls WHERE idempotency_key = :key AND started_at IS NOT NULL"
_USED: Final = Usage(input=5, output=5)


class SimulatedLlm:
    """Implements the `Llm` port."""

    def __init__(self, world: World, process: Mortal) -> None:
        self._world = world
        self._process = process

    async def stream(self, request: LlmRequest) -> AsyncGenerator[LlmDelta, None]:
        """Answer, ask for tools, fail, break off or take a long time."""
        self._world.note("asked", request.ordinal, len(request.messages))
        luck = self._world.luck
        await self._process.breathe(luck.choice((0.02, 0.02, 0.5, 4.0)))
        fate = luck.random()
        if fate < 0.08:
            kind = luck.choice((FailureKind.RATE_LIMIT, FailureKind.UNAVAILABLE))
            yield Failed(kind=kind, message="Later, please.")
            return
        for number in range(luck.randrange(4)):
            yield LlmTextDelta(text=f"word {number} ")
            await self._process.breathe(0.2)
        if fate < 0.12:
            raise ConnectionResetError("the line broke")
        # Fewer and fewer, so that turns end.
        wants_tools = fate < 0.65 and len(request.messages) % 7
        if not wants_tools:
            yield LlmTextDelta(text="the end")
            yield Stopped(reason=StepStop.STOP, usage=_USED)
            return
        for _ in range(luck.choice((1, 1, 2, 3))):
            for delta in self._call(luck.choice((*TOOLS, "no_such_tool"))):
                yield delta
        yield Stopped(reason=StepStop.TOOL_USE, usage=_USED)

    def _call(self, name: str) -> tuple[LlmDelta, ...]:
        call_id = f"call-{self._world.luck.getrandbits(64):x}"
        return (
            CallStarted(id=call_id, name=name),
            CallArguments(id=call_id, text='{"path": "a"}'),
            CallEnded(id=call_id),
        )


class SimulatedToolbox:
    """Implements the `Toolbox` port."""

    def __init__(self, world: World, process: Mortal) -> None:
        self._world = world
        self._process = process

    def effect(self, name: str, arguments: Mapping[str, Any], place: ToolWorkspace) -> Effect:
        """Return what the table says."""
        return TOOLS[name][0] if name in TOOLS else Effect.UNSAFE

    def is_parallel(self, name: str, place: ToolWorkspace) -> bool:
        """Run one call after the other."""
        return False

    async def offers(self, place: ToolWorkspace) -> tuple[LlmTool, ...]:
        """Offer everything."""
        return tuple(LlmTool(name=name, description=name, parameters={}) for name in TOOLS)

    async def troubles(self, place: ToolWorkspace) -> tuple[str, ...]:
        """Have none."""
        return ()

    async def plan(self, place: ToolWorkspace, asked: RequestedCall) -> PlannedCall | CallOutcome:
        """Agree to everything that there is."""
        await self._process.breathe(0.01)
        if asked.name not in TOOLS:
            return refuse_call(ResultCode.UNKNOWN_TOOL, f"There is no tool {asked.name!r}.")
        effect, tool_class = TOOLS[asked.name]
        digest = digest_call(asked.name, asked.arguments, place.working_dir, (asked.id,))
        return PlannedCall(
            asked=asked, effect=effect, tool_class=tool_class, digest=digest, question="May I?"
        )

    async def run(self, place: ToolWorkspace, planned: PlannedCall) -> CallOutcome:
        """Act; what has to be on disk by then is there, or it is a fault."""
        key = planned.asked.idempotency_key
        await self._process.breathe(0.3)
        if not self._world.disk.asked(STARTED, key=key):
            self._world.faults.append(f"{key} acted before its start was on disk")
        self._world.note("acted", key)
        if planned.effect is Effect.UNSAFE:
            self._world.acts[key] += 1
        await self._process.breathe(1.0)
        if self._world.luck.random() < 0.1:
            raise OSError("the tool fell over")
        return CallOutcome(status=ResultStatus.OK, result="done")

    async def leave(self, session: str) -> None:
        """Keep nothing as long as a session."""
