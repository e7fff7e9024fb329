"""A transcript of the Claude Agent SDK in Holdfast, with a tool whose call is guarded.

Needs `pip install 'holdfast[claude-agent-sdk]'`, and neither a key nor a network: instead of the
bundled program, this script hands the store and the hooks what the program would. With the program
it is `query(prompt="Look around.", options=options(hf))`.
"""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from holdfast import open_holdfast
from holdfast.integrations.claude_agent_sdk import options

PROJECT, SESSION = "-work", "0b2f6c1e-0000-4000-8000-000000000001"
SCRIPT: list[dict[str, Any]] = [
    {"type": "user", "uuid": "u1", "message": {"role": "user", "content": "Look around."}},
    {
        "type": "assistant",
        "uuid": "u2",
        "message": {
            "id": "msg_1",
            "model": "claude-sonnet-4-5",
            "stop_reason": "tool_use",
            "content": [
                {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "ls"}}
            ],
        },
    },
]


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with open_holdfast(Path(folder) / "home") as hf:
            given = options(hf)
            store, hook = given.session_store, given.hooks["PreToolUse"][0].hooks[0]
            for entry in SCRIPT:
                await store.append({"project_key": PROJECT, "session_id": SESSION}, [entry])
            call = {
                "transcript_path": f"/projects/{PROJECT}/{SESSION}.jsonl",
                "tool_name": "Bash",
                "tool_input": {"command": "ls"},
            }
            print("the program may run it:", await hook(call, "toolu_1", None) == {})
            for known in (await hf.calls.list(hf.owner)).items:
                print(known.name, known.arguments, known.state)
            for session in await store.list_session_summaries(PROJECT):
                print(session["data"]["first_prompt"])


asyncio.run(main())
