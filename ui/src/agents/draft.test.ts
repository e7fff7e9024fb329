import { expect, test } from "vitest";

import type { Agent } from "../api/forms";
import { bodyOf, draftOf, EMPTY, toggled } from "./draft";

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

test("a tool is chosen, and let go", () => {
  expect(toggled("", "read_file")).toBe("read_file");
  expect(toggled('read_file\n{"name":"x"}\n', "find_text")).toBe('read_file\n{"name":"x"}\nfind_text');
  expect(toggled("read_file\nfind_text", "read_file")).toBe("find_text");
});

test("an agent that nobody changed is sent as it was", () => {
  const { id: _id, status: _status, created_at: _c, updated_at: _u, ...fields } = AGENT;
  expect(bodyOf(draftOf(AGENT), AGENT)).toEqual(fields);
});

test("a program keeps the options that the form does not show", () => {
  const runtime = { type: "acp" as const, command: "gemini", args: ["--acp"], env_names: ["KEY"], options: { preset: "gemini" } };
  const agent = { ...AGENT, runtime, grant: null } as unknown as Agent;
  expect(bodyOf(draftOf(agent), agent)).toMatchObject({ runtime, grant: null });
  expect(bodyOf(draftOf(agent), agent)).not.toHaveProperty("default_model_id");
});

test("a new agent needs no more than a name", () => {
  expect(bodyOf({ ...EMPTY, name: " Clerk " }, null)).toEqual({
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
