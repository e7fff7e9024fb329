"""The supervisor process between Holdfast and a command; uses only the standard library.

It makes no decisions: `sandbox.py` writes the order, `launcher.py` sends it. It runs in a bare
interpreter and avoids slow imports, because every command waits for its start: no `typing` at run
time, no `signal`, no `contextlib`.

    supervisor            reads the order, watches the control pipe, enforces the grace period
    └── init              PID 1 of the namespace; when it ends, the kernel kills all others
        └── the command

Without a namespace there is no init: the supervisor adopts orphaned descendants and ends them.
"""
