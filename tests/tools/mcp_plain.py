"""An MCP server of the old days, by the standard library alone: it starts at once.

    mcp_plain.py BOOK

It knows the handshake, a list and a call, and reads its book anew at every request.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

# No process has the same; numbers of processes begin anew in every namespace.
WHO = os.urandom(8).hex()


def main() -> None:
    book = Path(sys.argv[1])
    for line in sys.stdin:
        asked = json.loads(line)
        if "id" not in asked:
            continue
        answer = answered(book, asked["method"], asked.get("params") or {})
        if answer is not None:
            print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer}), flush=True)


def answered(book: Path, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    """Return what is said to a request; nothing where the book wants silence."""
    content = json.loads(book.read_text("utf-8"))
    match method:
        case "initialize":
            server = {"name": "plain", "version": "1"}
            era = {"protocolVersion": "2024-11-05", "capabilities": {"tools": {}}}
            return {"result": {**era, "serverInfo": server}}
        case "tools/list":
            return {"result": listed(content, int(params.get("cursor", 0)))}
        case "tools/call":
            with book.with_suffix(".calls").open("a") as calls:
                calls.write(json.dumps([params["name"], params["arguments"]]) + "\n")
            with book.with_suffix(".metas").open("a") as metas:
                metas.write(json.dumps(params.get("_meta")) + "\n")
            how = content.get("answers", {}).get(params["name"], {})
            return called(how, params["arguments"])
        case _:
            return {"error": {"code": -32601, "message": "unknown"}}


def listed(content: dict[str, Any], start: int) -> dict[str, Any]:
    """Return a page of the tools."""
    end = start + content.get("page", 1000)
    more = {"nextCursor": str(end)} if end < len(content["tools"]) else {}
    return {"tools": content["tools"][start:end], **more}


def called(how: dict[str, Any], arguments: Any) -> dict[str, Any] | None:
    """Answer a call as the book wants it."""
    if "exit" in how:
        os._exit(how["exit"])
    if "hang" in how:
        return None
    if "content" in how:
        return {"result": how["content"]}
    text = how.get("text", json.dumps(arguments, sort_keys=True))
    if "fork" in how:
        # With the book on its command line, as we have it: so both can be found from outside.
        sleep = "import time; print('up', flush=True); time.sleep(3600)"
        argv = [sys.executable, "-S", "-c", sleep, sys.argv[1]]
        child = subprocess.Popen(argv, stdout=subprocess.PIPE)
        assert child.stdout is not None
        # Until it is what it will be: before, its command line is somebody else's or none.
        child.stdout.readline()
    if "complain" in how:
        print(how["complain"], file=sys.stderr, flush=True)
    if "who" in how:
        text = WHO
    if "look" in how:
        text = json.dumps([os.path.exists(path) for path in how["look"]])
    if "environment" in how:
        text = json.dumps(dict(os.environ))
    return {"result": {"content": [{"type": "text", "text": text}]}}


if __name__ == "__main__":
    main()
