import { expect, test } from "vitest";

import type { Agent } from "../api/types";
import { draftFromAgent, EMPTY_DRAFT, toggleLine, toRequestBody } from "./draft";

const AGENT = {
  id: "1",
  slug: "clerk",
  name: "Clerk",
  description: null,
  system_prompt: "Be terse.",
  default_model_id: "m1",
  fallback_model_ids: ["m2"],
  temperature: 0.2,
  max_tokens: null,
  tools: ["read_file", { name: "search", approval: "ask" }],
  tags: ["a", "b"],
  runtime: { type: "llm", reasoning_effort: "low" },
  grant: { fs: "project", commands: ["git"], command_globs: ["make *"], domains: [] },
  recovery: "stop",
  status: "active",
  created_at: "",
  updated_at: "",
} as unknown as Agent;

test("a tool is added and removed", () => {
  expect(toggleLine("", "read_file")).toBe("read_file");
  expect(toggleLine('read_file\n{"name":"x"}\n', "find_text")).toBe('read_file\n{"name":"x"}\nfind_text');
  expect(toggleLine("read_file\nfind_text", "read_file")).toBe("find_text");
});

test("an unchanged agent is sent as it was", () => {
  const { id: _id, status: _status, created_at: _c, updated_at: _u, ...fields } = AGENT;
  expect(toRequestBody(draftFromAgent(AGENT), AGENT)).toEqual(fields);
});

test("a program keeps options that the form does not show", () => {
  const runtime = { type: "acp" as const, command: "gemini", args: ["--acp"], env_names: ["KEY"], options: { preset: "gemini" } };
  const agent = { ...AGENT, runtime, grant: null } as unknown as Agent;
  expect(toRequestBody(draftFromAgent(agent), agent)).toMatchObject({ runtime, grant: null });
  expect(toRequestBody(draftFromAgent(agent), agent)).not.toHaveProperty("default_model_id");
});

test("a new agent needs only a name", () => {
  expect(toRequestBody({ ...EMPTY_DRAFT, name: " Clerk " }, null)).toEqual({
    name: "Clerk",
    description: null,
    system_prompt: "",
    tools: [],
    tags: [],
    runtime: { type: "llm" },
    grant: { fs: "sandboxed", commands: [], domains: [] },
    recovery: "stop",
    default_model_id: null,
    fallback_model_ids: [],
    temperature: null,
    max_tokens: null,
  });
});
