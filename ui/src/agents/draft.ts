/** An agent while somebody writes it: every field as text, until it is sent. */
import type { Agent, AgentPatch } from "../api/forms";

type Tool = Agent["tools"][number];

export interface AgentDraft {
  readonly name: string;
  readonly slug: string;
  readonly description: string;
  readonly kind: "llm" | "acp";
  readonly prompt: string;
  readonly model: string;
  readonly fallbacks: string;
  readonly temperature: string;
  readonly maxTokens: string;
  readonly command: string;
  readonly args: string;
  readonly variables: string;
  readonly tools: string;
  readonly tags: string;
  readonly reach: "" | "sandboxed" | "project" | "full";
  readonly commands: string;
  readonly domains: string;
  readonly recovery: "stop" | "continue";
}

export const EMPTY: AgentDraft = {
  name: "",
  slug: "",
  description: "",
  kind: "llm",
  prompt: "",
  model: "",
  fallbacks: "",
  temperature: "",
  maxTokens: "",
  command: "",
  args: "",
  variables: "",
  tools: "",
  tags: "",
  reach: "sandboxed",
  commands: "",
  domains: "",
  recovery: "stop",
};

export function draftOf(agent: Agent): AgentDraft {
  const program = agent.runtime.type === "acp" ? agent.runtime : null;
  return {
    name: agent.name,
    slug: agent.slug,
    description: agent.description ?? "",
    kind: program ? "acp" : "llm",
    prompt: agent.system_prompt,
    model: agent.default_model_id ?? "",
    fallbacks: agent.fallback_model_ids.join("\n"),
    temperature: agent.temperature === null ? "" : String(agent.temperature),
    maxTokens: agent.max_tokens === null ? "" : String(agent.max_tokens),
    command: program?.command ?? "",
    args: program?.args?.join("\n") ?? "",
    variables: program?.env_names?.join("\n") ?? "",
    tools: agent.tools.map((tool) => (typeof tool === "string" ? tool : JSON.stringify(tool))).join("\n"),
    tags: agent.tags.join(", "),
    reach: agent.grant?.fs ?? (agent.grant === null ? "" : "sandboxed"),
    commands: agent.grant?.commands?.join("\n") ?? "",
    domains: agent.grant?.domains?.join("\n") ?? "",
    recovery: agent.recovery,
  };
}

/** What the form does not show of an agent. */
export type Unshown = Pick<Agent, "runtime" | "grant">;

/** Return what is sent; what the form does not show of an agent stays as it was. */
export function bodyOf(draft: AgentDraft, before: Unshown | null): AgentPatch {
  const own = {
    name: draft.name.trim(),
    description: draft.description === "" ? null : draft.description,
    tools: lines(draft.tools).map(toolOf),
    tags: draft.tags.split(",").flatMap((tag) => tag.trim() || []),
    grant: grantOf(draft, before),
    recovery: draft.recovery,
    ...(draft.slug.trim() === "" ? {} : { slug: draft.slug.trim() }),
  };
  if (draft.kind === "acp") return { ...own, system_prompt: draft.prompt, runtime: programOf(draft, before) };
  return {
    ...own,
    system_prompt: draft.prompt,
    runtime: before?.runtime.type === "llm" ? before.runtime : { type: "llm" },
    default_model_id: draft.model.trim() || null,
    fallback_model_ids: lines(draft.fallbacks),
    temperature: draft.temperature.trim() === "" ? null : Number(draft.temperature),
    max_tokens: draft.maxTokens.trim() === "" ? null : Number(draft.maxTokens),
  };
}

function programOf(draft: AgentDraft, before: Unshown | null): NonNullable<AgentPatch["runtime"]> {
  const options = before?.runtime.type === "acp" ? before.runtime.options : undefined;
  return {
    type: "acp",
    command: draft.command.trim(),
    args: lines(draft.args),
    env_names: lines(draft.variables),
    ...(options === undefined ? {} : { options }),
  };
}

function grantOf(draft: AgentDraft, before: Unshown | null): NonNullable<AgentPatch["grant"]> | null {
  if (draft.reach === "") return null;
  return {
    fs: draft.reach,
    commands: lines(draft.commands),
    domains: lines(draft.domains),
    ...(before?.grant?.command_globs ? { command_globs: before.grant.command_globs } : {}),
  };
}

/** Return a list on lines with one more, or without it where it is there. */
export function toggled(text: string, line: string): string {
  const before = lines(text);
  return (before.includes(line) ? before.filter((each) => each !== line) : [...before, line]).join("\n");
}

function lines(text: string): string[] {
  return text.split("\n").flatMap((line) => line.trim() || []);
}

/** A tool is a name, or an object on one line; what is neither is left to the server to refuse. */
function toolOf(line: string): Tool {
  if (!line.startsWith("{")) return line;
  try {
    return JSON.parse(line) as Exclude<Tool, string>;
  } catch {
    return line;
  }
}
