"""`holdfast workers`: the processes that run tools."""

from pathlib import Path

from holdfast import sync
from holdfast.domain.tools import ToolSpec
from holdfast.workers.model import WorkerRequest
from tests.cli.conftest import Cli
from tests.tooled import a_config, says


def test_workers_are_listed_with_what_they_run(cli: Cli, home: Path) -> None:
    with sync.open_holdfast(config=a_config(home, says("ok"))) as hf:
        for name in ("payments-1", "payments-2"):
            request = WorkerRequest(name=name, tools=(ToolSpec(name="refund"),))
            hf.workers.register(hf.owner, request)

    shown = cli("workers", "list")
    first = cli("workers", "list", "--limit", "1", "--json").document
    second = cli("workers", "list", "--cursor", first["next_cursor"], "--json").document

    assert shown.code == 0
    assert "payments-1" in shown.out
    assert "tool:refund" in shown.out
    names = [each["name"] for page in (first, second) for each in page["data"]]
    assert sorted(names) == ["payments-1", "payments-2"]
