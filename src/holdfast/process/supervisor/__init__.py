"""The supervisor process between Holdfast and every program that it starts.

Commands, MCP servers, ACP agents and their terminals have the same supervisor. It uses only the
standard library and makes no decisions: `child.py` and `sandbox.py` write the order. It runs in a
bare interpreter and avoids slow imports, because every command waits for its start: no `typing` at
run time, no `signal`, no `contextlib`.

    supervisor            reads the order, watches the control pipe, enforces the grace period
    └── init              PID 1 of the namespace; when it ends, the kernel kills all others
        └── the program

Without a PID namespace (agents and their terminals have none) there is no init: the supervisor
adopts orphaned descendants and ends them. The protocol:

    control   "T" asks all processes to end; EOF means that Holdfast has died or closed the child
    report    "born PID START", "refused STAGE ERRNO", "exited STATUS", "aside PATH", one per line
"""
