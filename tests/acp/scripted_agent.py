"""A scripted agent: one file, standard library only, driven by a JSON script.

    python peer.py SCRIPT.json [any other arguments]

THE SCRIPT is one object; every key may be missing.

    "log"      file that gets one JSON object per line: see THE LOG
    "start"    steps done before anything is read
    "on"       {method: steps}, or {method: [steps, steps, …]} for the first, second, … request of
               that method, the last one repeated; see STEPS. Methods that are not named do what
               DEFAULTS says.
    "ignore"   any of "TERM", "INT", "HUP" (signals), "cancel" (session/cancel is only logged),
               "eof" (lives on when its input is closed)
    "eof"      steps done when the input is closed, before it exits with 0
    "chunk"    {"size": 7, "pause": 0.001}: every output is written in pieces of so many bytes
    "die"      {"at_byte": 100, "how": "KILL", "from": "session/prompt", "nth": 1}: when so many
               bytes of output were written, no byte more is, and it dies: by a signal, or with an
               exit code if "how" is a number. "from" counts only from the nth request of a method.
    "runs"     [object, object, …]: laid over the script in the first, second, … process that uses
               the same log, the last one repeated

STEPS are done in order, each an object with one of these keys (or just the key as a text where it
needs no value: "reply", "hang", "until_cancel").

    {"reply": RESULT}            answer the request; once per request
    {"error": {"code": -32603, "message": "no", "data": 1}}
    {"update": UPDATE}           session/update of the current session
    {"text": "hi"}               the same for agent_message_chunk; "thought" for agent_thought_chunk
    {"texts": 5000}              so many text chunks "chunk 0 ", "chunk 1 ", …; as an object
                                 {"count": 5000, "size": 100, "pause": 0.0} padded to a size
    {"notify": {"method": "…", "params": {…}}}
    {"ask": {"method": "fs/read_text_file", "params": {…}, "id": 0, "as": "name", "wait": true,
             "save": {"terminal": "terminalId"}, "seconds": 30}}
                                 send a request; ids count from 0 unless given. The reply is logged
                                 as "name". Without "wait" it goes on at once. "save" keeps fields
                                 of the result for later.
    {"await": "name"}            wait for the reply of an earlier "ask" that did not wait
    {"line": ANY}                write any JSON value as one line
    {"raw": "text", "times": 1}  write the text as it is, without a line end; "hex" for bytes
    {"stderr": "text", "times": 1}
    {"sleep": 0.5}               ends early when the session is cancelled
    {"until_cancel": 60}         wait for session/cancel, at most so many seconds
    {"wait_file": "/path"}       wait until a file is there
    {"mark": "name"}             log it, so that a test can wait for it
    {"file": {"path": "a.txt", "content": "x"}}   write a file behind everybody's back
    {"fork": {"seconds": 600, "hold": true, "session": false, "ignore": ["TERM"]}}
                                 leave a grandchild; "hold" keeps our streams open in it, "session"
                                 gives it a session of its own
    {"close": "stdout"}          or "stdin", "stderr"
    {"exit": 3}                  {"signal": "KILL"} for a signal to itself
    {"hang": true}               never do anything more in this request
    {"repeat": {"count": 3, "steps": [STEP, …]}}

In any value a text that is "$name" stands for a variable: $id (of the request), $session, $turn
(which prompt of this process, from 1), $prompt (its text), $cwd, $pid, and what "save" kept.

DEFAULTS (no steps at all, [], mean that a request is never answered). initialize: version 1, with
"capabilities" of the script or {}. session/new: {"sessionId": "peer-session-1"} and so on, with the
script's "session" ({} or more fields) laid over. session/load, session/resume, session/close and
any other request: -32601, unless "capabilities" offer it, then {}. session/prompt: the text "ok",
then {"stopReason": "end_turn"}. session/cancel: the steps of the session's prompt stop, open
questions are forgotten, and the prompt is answered {"stopReason": "cancelled"}.

THE LOG has an object per line with "event" and "at" (monotonic seconds):

    start    argv, cwd, env, pid, group, session, umask, fds, nice, limits
    got      message: a whole line that came; raw instead if it is no JSON
    answer   name, message: the reply to an "ask"
    mark name · forked pid · signal name · eof · cancelled session · done method
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import threading
import time

# Not loaded to be played, because that would take longer than most of a start.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

PATIENCE = 60.0


class Cancelled(Exception):  # noqa: N818 — it is no error
    """The session's prompt is over, because somebody said so."""


class Peer:
    """One process of the agent."""

    def __init__(self, script: dict[str, Any]) -> None:
        self.log_file = script.get("log")
        runs = script.get("runs")
        if runs:
            script = script | runs[min(self.former_starts(), len(runs) - 1)]
        self.script = script
        self.writing = threading.Lock()
        self.logging = threading.Lock()
        self.written = 0
        self.counted_from = 0 if "from" not in script.get("die", {}) else None
        self.calls: dict[str, int] = {}
        self.last_id = -1
        self.sessions = 0
        self.replies: dict[Any, dict[str, Any]] = {}
        self.asked: dict[str, Any] = {}
        self.arrived = threading.Condition()
        self.cancels: dict[Any, threading.Event] = {}
        self.variables: dict[str, Any] = {"pid": os.getpid(), "cwd": os.getcwd(), "turn": 0}

    # What is written down.

    def former_starts(self) -> int:
        try:
            with open(self.log_file or "", encoding="utf-8") as file:
                return sum('"event": "start"' in line for line in file)
        except OSError:
            return 0

    def log(self, event: str, **fields: Any) -> None:
        if self.log_file:
            entry = {"event": event, "at": time.monotonic(), **fields}
            line = json.dumps(entry).encode() + b"\n"
            with self.logging, open(self.log_file, "ab", buffering=0) as file:
                file.write(line)

    def log_start(self) -> None:
        umask = os.umask(0o077)
        os.umask(umask)
        self.log(
            "start",
            argv=sys.argv,
            cwd=os.getcwd(),
            env=environment(),
            pid=os.getpid(),
            group=os.getpgid(0),
            session=os.getsid(0),
            umask=umask,
            fds=descriptors(),
            nice=os.nice(0),
            limits={
                "address_space": resource.getrlimit(resource.RLIMIT_AS)[0],
                "cpu_seconds": resource.getrlimit(resource.RLIMIT_CPU)[0],
                "processes": resource.getrlimit(resource.RLIMIT_NPROC)[0],
            },
        )

    # What is said.

    def write(self, content: bytes) -> None:
        chunk = self.script.get("chunk", {})
        size = chunk.get("size", len(content) or 1)
        with self.writing:
            for start in range(0, len(content), size):
                self.write_piece(content[start : start + size])
                if chunk.get("pause"):
                    time.sleep(chunk["pause"])

    def write_piece(self, piece: bytes) -> None:
        left = self.left_to_live()
        dies = left is not None and len(piece) >= left
        self.written += write_all(1, piece[:left] if dies else piece)
        if dies:
            self.die(self.script["die"].get("how", "KILL"))

    def left_to_live(self) -> int | None:
        if "die" not in self.script or self.counted_from is None:
            return None
        return max(0, int(self.script["die"]["at_byte"]) - (self.written - self.counted_from))

    def die(self, how: str | int) -> NoReturn:
        if isinstance(how, str):
            os.kill(os.getpid(), getattr(signal, f"SIG{how}"))
            time.sleep(PATIENCE)
        os._exit(int(how))

    def send(self, message: Any) -> None:
        self.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    def update(self, session: Any, update: Any) -> None:
        params = {"sessionId": session, "update": update}
        self.send({"jsonrpc": "2.0", "method": "session/update", "params": params})

    # What is heard.

    def run(self) -> None:
        self.listen_to_signals()
        self.log_start()
        Steps(self, {"method": "start", "id": None}).run(self.script.get("start", []))
        buffer = b""
        while True:
            try:
                chunk = os.read(0, 1 << 16)
            except OSError:
                chunk = b""
            if not chunk:
                break
            *lines, buffer = (buffer + chunk).split(b"\n")
            for line in lines:
                self.hear(line)
        self.log("eof")
        if "eof" in self.script.get("ignore", []):
            time.sleep(10 * PATIENCE)
        Steps(self, {"method": "eof", "id": None}).run(self.script.get("eof", []))
        os._exit(0)

    def listen_to_signals(self) -> None:
        for name in ("TERM", "INT", "HUP"):
            if name in self.script.get("ignore", []):
                signal.signal(
                    getattr(signal, f"SIG{name}"),
                    lambda *_, name=name: self.log("signal", name=name),
                )

    def hear(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except ValueError:
            self.log("got", raw=line[:2000].decode("latin-1"))
            return
        self.log("got", message=message)
        if not isinstance(message, dict):
            return
        method = message.get("method")
        if method is None:
            with self.arrived:
                self.replies[json.dumps(message.get("id"))] = message
                self.arrived.notify_all()
        elif method == "session/cancel" and method not in self.script.get("on", {}):
            self.cancel(message.get("params", {}).get("sessionId"))
        else:
            # Made here and not in the thread, because a cancel may be the next line.
            steps, todo = Steps(self, message), self.steps_for(message)
            threading.Thread(target=self.serve, args=(steps, todo), daemon=True).start()

    def cancel(self, session: Any) -> None:
        if "cancel" not in self.script.get("ignore", []):
            self.cancels.setdefault(session, threading.Event()).set()
            self.log("cancelled", session=session)
            with self.arrived:
                self.arrived.notify_all()

    def serve(self, steps: Steps, todo: list[Any]) -> None:
        steps.run(todo)
        self.log("done", method=steps.message["method"])

    def steps_for(self, message: dict[str, Any]) -> list[Any]:
        method = message["method"]
        nth = self.calls[method] = self.calls.get(method, 0) + 1
        dies = self.script.get("die", {})
        if dies.get("from") == method and dies.get("nth", 1) == nth:
            # After the bytes of the last reply are counted, which the client may have read before.
            with self.writing:
                self.counted_from = self.written
        if method == "session/prompt":
            self.variables["turn"] = nth
        steps: list[Any] | None = self.script.get("on", {}).get(method)
        if steps is None:
            return self.default(message)
        if steps and isinstance(steps[0], list):
            chosen: list[Any] = steps[min(nth, len(steps)) - 1]
            return chosen
        return steps

    def default(self, message: dict[str, Any]) -> list[Any]:
        method = message["method"]
        capabilities = self.script.get("capabilities", {})
        offered = capabilities.get("sessionCapabilities", {})
        if method == "initialize":
            return [
                {
                    "reply": {
                        "protocolVersion": 1,
                        "agentCapabilities": capabilities,
                        "agentInfo": {"name": "peer", "title": "Peer", "version": "1.0"},
                        "authMethods": [],
                    }
                }
            ]
        if method == "session/new":
            self.sessions += 1
            fresh = {"sessionId": f"peer-session-{self.sessions}"}
            return [{"reply": fresh | self.script.get("session", {})}]
        if method == "session/prompt":
            return [{"text": "ok"}, {"reply": {"stopReason": "end_turn"}}]
        is_offered = method.removeprefix("session/") in offered or (
            method == "session/load" and capabilities.get("loadSession")
        )
        if is_offered:
            return [{"reply": {"sessions": []} if method == "session/list" else {}}]
        if "id" not in message:
            return []
        return [{"error": {"code": -32601, "message": f"no method {method}"}}]


class Steps:
    """The steps of one request."""

    def __init__(self, peer: Peer, message: dict[str, Any]) -> None:
        self.peer = peer
        self.message = message
        params = message.get("params")
        self.params: dict[str, Any] = params if isinstance(params, dict) else {}
        self.session = self.params.get("sessionId", f"peer-session-{peer.sessions or 1}")
        self.is_prompt = message.get("method") == "session/prompt"
        self.is_answered = False
        if self.is_prompt:
            peer.cancels[self.session] = threading.Event()

    def run(self, steps: list[Any]) -> None:
        try:
            self.do_all(steps)
        except Cancelled:
            if not self.is_answered:
                self.step_reply({"stopReason": "cancelled"})

    def do_all(self, steps: list[Any]) -> None:
        for given in steps:
            if self.is_prompt and not self.is_answered and self.cancelled().is_set():
                raise Cancelled
            step = {given: True} if isinstance(given, str) else given
            name = next(iter(step))
            getattr(self, f"step_{name}")(self.filled(step[name]), **self.beside(step, name))

    def beside(self, step: dict[str, Any], name: str) -> dict[str, Any]:
        return {key: value for key, value in step.items() if key != name}

    def cancelled(self) -> threading.Event:
        return self.peer.cancels.setdefault(self.session, threading.Event())

    def filled(self, value: Any) -> Any:
        """Return the value with variables in their places."""
        if isinstance(value, dict):
            return {key: self.filled(each) for key, each in value.items()}
        if isinstance(value, list):
            return [self.filled(each) for each in value]
        if isinstance(value, str) and value.startswith("$"):
            return self.known().get(value[1:], value)
        return value

    def known(self) -> dict[str, Any]:
        blocks = self.params.get("prompt", [])
        text = "\n".join(each.get("text", "") for each in blocks if isinstance(each, dict))
        own = {"id": self.message.get("id"), "session": self.session, "prompt": text}
        return self.peer.variables | own

    def pause(self, seconds: float) -> None:
        if not self.is_prompt:
            time.sleep(seconds)
        elif self.cancelled().wait(seconds):
            raise Cancelled

    # One method for each step.

    def step_reply(self, result: Any) -> None:
        self.is_answered = True
        self.peer.send({"jsonrpc": "2.0", "id": self.message.get("id"), "result": result})

    def step_error(self, error: Any) -> None:
        self.is_answered = True
        self.peer.send({"jsonrpc": "2.0", "id": self.message.get("id"), "error": error})

    def step_update(self, update: Any) -> None:
        self.peer.update(self.session, update)

    def step_text(self, text: str) -> None:
        content = {"type": "text", "text": text}
        self.step_update({"sessionUpdate": "agent_message_chunk", "content": content})

    def step_thought(self, text: str) -> None:
        content = {"type": "text", "text": text}
        self.step_update({"sessionUpdate": "agent_thought_chunk", "content": content})

    def step_texts(self, how: Any) -> None:
        how = how if isinstance(how, dict) else {"count": how}
        for number in range(how["count"]):
            if self.is_prompt and self.cancelled().is_set():
                raise Cancelled
            self.step_text(f"chunk {number} ".ljust(how.get("size", 0), "x"))
            if how.get("pause"):
                self.pause(how["pause"])

    def step_notify(self, message: Any) -> None:
        self.peer.send({"jsonrpc": "2.0", **message})

    def step_ask(self, ask: dict[str, Any]) -> None:
        peer = self.peer
        with peer.arrived:
            peer.last_id += 1
            number = ask.get("id", peer.last_id)
            name = ask.get("as", str(number))
            peer.asked[name] = ask | {"id": number}
        message = {"id": number, "method": ask["method"], "params": ask.get("params", {})}
        peer.send({"jsonrpc": "2.0", **message})
        if ask.get("wait", True):
            self.step_await(name)

    def step_await(self, name: str) -> None:
        peer, ask = self.peer, self.peer.asked[name]
        key = json.dumps(ask["id"])
        until = time.monotonic() + ask.get("seconds", PATIENCE)
        with peer.arrived:
            while key not in peer.replies:
                left = until - time.monotonic()
                if self.is_prompt and self.cancelled().is_set():
                    raise Cancelled
                if left <= 0 or not peer.arrived.wait(left):
                    peer.log("answer", name=name, message=None)
                    return
            reply = peer.replies.pop(key)
        peer.log("answer", name=name, message=reply)
        for variable, field in ask.get("save", {}).items():
            peer.variables[variable] = (reply.get("result") or {}).get(field)

    def step_line(self, value: Any) -> None:
        self.peer.send(value)

    def step_raw(self, text: str, times: int = 1) -> None:
        for _ in range(times):
            self.peer.write(text.encode("utf-8", "surrogatepass"))

    def step_hex(self, text: str, times: int = 1) -> None:
        for _ in range(times):
            self.peer.write(bytes.fromhex(text))

    def step_stderr(self, text: str, times: int = 1) -> None:
        for _ in range(times):
            write_all(2, text.encode())

    def step_sleep(self, seconds: float) -> None:
        self.pause(seconds)

    def step_until_cancel(self, seconds: float) -> None:
        self.pause(PATIENCE if seconds is True else seconds)

    def step_wait_file(self, path: str) -> None:
        until = time.monotonic() + PATIENCE
        while not os.path.exists(path) and time.monotonic() < until:
            self.pause(0.01)

    def step_mark(self, name: str) -> None:
        self.peer.log("mark", name=name)

    def step_file(self, file: dict[str, str]) -> None:
        with open(file["path"], "w", encoding="utf-8") as target:
            target.write(file["content"])

    def step_fork(self, how: Any) -> None:
        how = how if isinstance(how, dict) else {}
        pid = os.fork()
        if pid == 0:
            for name in how.get("ignore", []):
                signal.signal(getattr(signal, f"SIG{name}"), signal.SIG_IGN)
            if how.get("session"):
                os.setsid()
            if not how.get("hold", True):
                for stream in range(3):
                    os.close(stream)
            time.sleep(how.get("seconds", 600))
            os._exit(0)
        self.peer.log("forked", pid=pid)

    def step_close(self, stream: str) -> None:
        os.close({"stdin": 0, "stdout": 1, "stderr": 2}[stream])

    def step_exit(self, code: int) -> None:
        os._exit(code)

    def step_signal(self, name: str) -> None:
        self.peer.die(name)

    def step_hang(self, _: Any) -> None:
        while True:
            time.sleep(PATIENCE)

    def step_repeat(self, what: dict[str, Any]) -> None:
        for _ in range(what["count"]):
            self.do_all(what["steps"])


def environment() -> dict[str, str]:
    """Return what this process was given: Python itself may have added to what it has."""
    try:
        with open("/proc/self/environ", encoding="utf-8", errors="replace") as file:
            return dict(each.partition("=")[::2] for each in file.read().split("\0") if each)
    except OSError:
        return dict(os.environ)


def descriptors() -> list[int]:
    """Return what is open; the listing itself is, too, and is closed when it is looked at."""
    listed = [int(each) for each in os.listdir("/proc/self/fd")] if os.path.isdir("/proc") else []
    found = []
    for descriptor in listed:
        try:
            os.fstat(descriptor)
        except OSError:
            continue
        found.append(descriptor)
    return sorted(found)


def write_all(stream: int, content: bytes) -> int:
    """Write everything, and return how much that was; a closed stream takes all of it."""
    rest = content
    while rest:
        try:
            rest = rest[os.write(stream, rest) :]
        except OSError:
            break
    return len(content)


def play(file: str) -> None:
    """Play the script in a file."""
    with open(file, encoding="utf-8") as given:
        script = json.load(given)
    Peer(script).run()
