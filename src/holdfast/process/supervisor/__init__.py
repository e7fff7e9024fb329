"""The process between Holdfast and a command, in a bare interpreter: standard library only.

It decides nothing: `sandbox.py` writes the order, `launcher.py` sends it. Modules that are slow to
import are not imported here, because every command waits for it: hence no `typing` at run time, no
`signal`, no `contextlib`.

    supervisor            reads the order, listens to Holdfast, times the end
    └── init              first process of the namespace; when it ends, the kernel ends all others
        └── the command

Without a namespace there is no init: the supervisor adopts orphaned descendants and ends them.
"""
