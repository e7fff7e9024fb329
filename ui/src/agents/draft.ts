/** The state of the agent form: every field is text until it is sent. */
import type { Agent, AgentPatch } from "../api/types";

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
  readonly fileAccess: "" | "sandboxed" | "project" | "full";
  readonly commands: string;
  readonly domains: string;
  readonly recovery: "stop" | "continue";
}

export const EMPTY_DRAFT: AgentDraft = {
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
  fileAccess: "sandboxed",
  commands: "",
  domains: "",
  recovery: "stop",
};

export function draftFromAgent(agent: Agent): AgentDraft {
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
    fileAccess: agent.grant?.fs ?? (agent.grant === null ? "" : "sandboxed"),
    commands: agent.grant?.commands?.join("\n") ?? "",
    domains: agent.grant?.domains?.join("\n") ?? "",
    recovery: agent.recovery,
  };
}

/** The settings that the form does not show. */
export type HiddenFields = Pick<Agent, "runtime" | "grant">;

/** Return the request body; settings that the form does not show keep their values. */
export function toRequestBody(draft: AgentDraft, previous: HiddenFields | null): AgentPatch {
  const common = {
    name: draft.name.trim(),
    description: draft.description === "" ? null : draft.description,
    tools: splitLines(draft.tools).map(parseTool),
    tags: draft.tags.split(",").flatMap((tag) => tag.trim() || []),
    grant: toGrant(draft, previous),
    recovery: draft.recovery,
    ...(draft.slug.trim() === "" ? {} : { slug: draft.slug.trim() }),
  };
  if (draft.kind === "acp") return { ...common, system_prompt: draft.prompt, runtime: toProgramRuntime(draft, previous) };
  return {
    ...common,
    system_prompt: draft.prompt,
    runtime: previous?.runtime.type === "llm" ? previous.runtime : { type: "llm" },
    default_model_id: draft.model.trim() || null,
    fallback_model_ids: splitLines(draft.fallbacks),
    temperature: draft.temperature.trim() === "" ? null : Number(draft.temperature),
    max_tokens: draft.maxTokens.trim() === "" ? null : Number(draft.maxTokens),
  };
}

function toProgramRuntime(draft: AgentDraft, previous: HiddenFields | null): NonNullable<AgentPatch["runtime"]> {
  const options = previous?.runtime.type === "acp" ? previous.runtime.options : undefined;
  return {
    type: "acp",
    command: draft.command.trim(),
    args: splitLines(draft.args),
    env_names: splitLines(draft.variables),
    ...(options === undefined ? {} : { options }),
  };
}

function toGrant(draft: AgentDraft, previous: HiddenFields | null): NonNullable<AgentPatch["grant"]> | null {
  if (draft.fileAccess === "") return null;
  return {
    fs: draft.fileAccess,
    commands: splitLines(draft.commands),
    domains: splitLines(draft.domains),
    ...(previous?.grant?.command_globs ? { command_globs: previous.grant.command_globs } : {}),
  };
}

/** Add a line to a list of lines, or remove it. */
export function toggleLine(text: string, line: string): string {
  const previous = splitLines(text);
  return (previous.includes(line) ? previous.filter((each) => each !== line) : [...previous, line]).join("\n");
}

function splitLines(text: string): string[] {
  return text.split("\n").flatMap((line) => line.trim() || []);
}

/** Parse a tool name, or a tool object on one line; the server rejects anything else. */
function parseTool(line: string): Tool {
  if (!line.startsWith("{")) return line;
  try {
    return JSON.parse(line) as Exclude<Tool, string>;
  } catch {
    return line;
  }
}
