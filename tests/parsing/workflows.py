"""Workflow documents for tests: the least one, and one with a bit of everything."""

from typing import Any

NODES: list[dict[str, Any]] = [
    {"id": "input", "type": "input", "label": "Begin"},
    {
        "id": "think",
        "type": "agent",
        "agent_ref": "helper",
        "prompt_template": "Look at {{inputs.file}}.",
        "system_prompt_append": "Be brief.",
        "tools": ["read_file"],
        "model": "gpt-5",
        "temperature": 1,
        "max_tokens": 100,
        "output_schema": {"type": "object"},
        "output_modalities": ["text"],
        "count": 1,
        "duration_seconds": 1.5,
        "timeout_ms": 1000,
        "retry": {"max": 2, "backoff": "linear"},
    },
    {
        "id": "gate",
        "type": "human_gate",
        "gate_type": "approval",
        "assignee": "me",
        "message_template": "Well?",
        "timeout_ms": 1,
        "timeout_action": "reject",
    },
    {
        "id": "choose",
        "type": "condition",
        "expression": "x > 1",
        "branches": [{"when": True, "target_node": "all"}, {"when": 1.5, "target_node": "output"}],
        "expression_type": "js",
        "default": "output",
    },
    {"id": "all", "type": "parallel", "parallel_of": ["change", "join"]},
    {"id": "change", "type": "transform", "transform": "x", "output_schema": {}},
    {"id": "join", "type": "merge", "merge_strategy": "custom", "merge_fn": "f"},
    {"id": "output", "type": "output", "output_format": "markdown", "save_to": "out/a.md"},
]
WHOLE: dict[str, Any] = {
    "schema_version": "1.0",
    "workflow": {
        "id": "whole",
        "version": "2",
        "name": "Whole",
        "description": "All of it.",
        "tags": ["a"],
        "metadata": {"anything": [1, None, {"{{secrets.x}}": "\x00"}]},
        "trigger": {"type": "webhook", "path": "/x", "secret_env": "X"},
        "inputs": [
            {"name": "file", "type": "file_path", "required": True, "description": "Which."},
            {"name": "n", "type": "number", "default": 1, "validation": {"min": 0, "max": 2.5}},
            {"name": "t", "type": "string", "validation": {"min_length": 1, "max_length": 1}},
            {"name": "b", "type": "boolean", "default": False, "validation": {}},
            {"name": "key", "type": "secret"},
        ],
        "context": [{"key": "lang", "value": "en"}, {"key": "deep", "value": [{"a": 1}]}],
        "agents": [
            {"id": "helper", "model": "gpt-5", "provider": "openai", "system_prompt": "Help."},
            {"$ref": "agents/other.agent.yaml"},
        ],
        "tools": {"allowedCommands": ["git status"], "allowedDomains": ["example.com"]},
        "budget": {"max_cost_microcents": 1, "on_exceed": "pause_for_approval"},
        "timeout_ms": 1,
        "max_parallel": 1,
        "nodes": NODES,
        "edges": [
            {"from": "input", "to": "think", "label": "go"},
            {"from": "choose:yes", "to": "all", "condition": "x"},
            {"from": "all", "to": "join"},
        ],
    },
}
LEAST: dict[str, Any] = {
    "schema_version": "1.0",
    "workflow": {"id": "least", "nodes": [{"id": "output", "type": "output"}], "edges": []},
}
