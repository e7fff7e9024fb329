/** The fields of an agent, those of its runtime among them. */
import { useQuery } from "@tanstack/react-query";
import { createContext, useContext, type ReactNode } from "react";

import type { Refusal } from "../api/client";
import { defaultsQuery, modelsQuery } from "../api/queries";
import { modelName } from "../text/format";
import { toggled, type AgentDraft } from "./draft";

interface Props {
  readonly draft: AgentDraft;
  readonly onChange: (draft: AgentDraft) => void;
  readonly refusal: Refusal | null;
}

/** What was refused is told beside the field that it is about. */
const Refused = createContext<Refusal | null>(null);
const TOLD_AT = new Set(["name", "slug", "description", "system_prompt", "temperature", "max_tokens", "tools", "tags"]);

export function isToldAtField(refusal: Refusal): boolean {
  return TOLD_AT.has(refusal.field ?? "");
}

export function AgentFields({ draft, onChange, refusal }: Props) {
  const set = (changes: Partial<AgentDraft>) => onChange({ ...draft, ...changes });
  return (
    <Refused value={refusal}>
      <div className="pair">
        <Line label="Name" field="name" value={draft.name} onChange={(name) => set({ name })} />
        <Line label="Slug" field="slug" hint="made from the name where it is empty" value={draft.slug} onChange={(slug) => set({ slug })} />
      </div>
      <Line label="Description" field="description" value={draft.description} onChange={(description) => set({ description })} />
      <fieldset>
        <legend>Who answers</legend>
        <Radio label="A language model" isChosen={draft.kind === "llm"} onChoose={() => set({ kind: "llm" })} />
        <Radio label="A program of its own" isChosen={draft.kind === "acp"} onChoose={() => set({ kind: "acp" })} />
      </fieldset>
      {draft.kind === "llm" ? <ModelFields draft={draft} set={set} /> : <ProgramFields draft={draft} set={set} />}
      <Reach draft={draft} set={set} />
    </Refused>
  );
}

type Set = (changes: Partial<AgentDraft>) => void;

function ModelFields({ draft, set }: { draft: AgentDraft; set: Set }) {
  return (
    <>
      <Lines label="System prompt" field="system_prompt" rows={6} value={draft.prompt} onChange={(prompt) => set({ prompt })} />
      <div className="pair">
        <ModelField value={draft.model} onChange={(model) => set({ model })} />
        <Lines label="If it fails" hint="one model on each line" rows={1} value={draft.fallbacks} onChange={(fallbacks) => set({ fallbacks })} />
      </div>
      <div className="pair">
        <Line label="Temperature" field="temperature" hint="0 to 2; empty leaves it to the model" value={draft.temperature} onChange={(temperature) => set({ temperature })} />
        <Line label="Longest answer" field="max_tokens" hint="tokens" value={draft.maxTokens} onChange={(maxTokens) => set({ maxTokens })} />
      </div>
      <ToolsField value={draft.tools} onChange={(tools) => set({ tools })} />
    </>
  );
}

/** The tools that there are, to be chosen; others are written. */
function ToolsField({ value, onChange }: { value: string; onChange: (tools: string) => void }) {
  const { data } = useQuery(defaultsQuery);
  const chosen = new Set(value.split("\n").map((line) => line.trim()));
  return (
    <div className="tools-field">
      <Lines label="Tools" field="tools" hint="one on each line: a name, or a JSON object" rows={3} value={value} onChange={onChange} />
      <div className="choices" role="group" aria-label="Known ones">
        {data?.tools?.map((name) => (
          <button key={name} type="button" className="small" aria-pressed={chosen.has(name)} onClick={() => onChange(toggled(value, name))}>
            {name}
          </button>
        ))}
      </div>
    </div>
  );
}

function ModelField({ value, onChange }: { value: string; onChange: (model: string) => void }) {
  const { data } = useQuery(modelsQuery);
  const known = data?.data ?? [];
  const shown = known.find((each) => each.id === value);
  return (
    <div>
      <Labelled label="Model">
        <input
          list="models"
          placeholder="as the server is set"
          value={shown ? `${shown.provider}:${shown.name}` : value}
          onChange={(event) => onChange(event.target.value)}
        />
      </Labelled>
      <datalist id="models">
        {known.map((each) => (
          <option key={each.id} value={`${each.provider}:${each.name}`}>
            {each.display_name ?? modelName(each.name)}
          </option>
        ))}
      </datalist>
    </div>
  );
}

function ProgramFields({ draft, set }: { draft: AgentDraft; set: Set }) {
  return (
    <>
      <Line label="Command" value={draft.command} onChange={(command) => set({ command })} />
      <div className="pair">
        <Lines label="Arguments" hint="one on each line" rows={2} value={draft.args} onChange={(args) => set({ args })} />
        <Lines
          label="Variables it is given"
          hint="names of the server's own, never values"
          rows={2}
          value={draft.variables}
          onChange={(variables) => set({ variables })}
        />
      </div>
    </>
  );
}

function Reach({ draft, set }: { draft: AgentDraft; set: Set }) {
  return (
    <>
      <div className="pair">
        <Choice
          label="Files it may reach"
          value={draft.reach}
          options={{ sandboxed: "its session's own folder", project: "the repository", full: "everything of yours", "": "as the server is set" }}
          onChange={(reach) => set({ reach: reach as AgentDraft["reach"] })}
        />
        <Choice
          label="After a crash"
          value={draft.recovery}
          options={{ stop: "stop, and wait for somebody", continue: "go on by itself" }}
          onChange={(recovery) => set({ recovery: recovery as AgentDraft["recovery"] })}
        />
      </div>
      {draft.reach !== "" && (
        <div className="pair">
          <Lines label="Commands it may run" hint="one on each line" rows={2} value={draft.commands} onChange={(commands) => set({ commands })} />
          <Lines label="Domains it may ask" hint="one on each line" rows={2} value={draft.domains} onChange={(domains) => set({ domains })} />
        </div>
      )}
      <Line label="Tags" field="tags" hint="with commas between them" value={draft.tags} onChange={(tags) => set({ tags })} />
    </>
  );
}

interface FieldProps {
  readonly label: string;
  /** What the server calls it. */
  readonly field?: string;
  readonly hint?: string;
  readonly value: string;
  readonly onChange: (text: string) => void;
}

interface LabelledProps {
  readonly label: string;
  readonly hint?: string | undefined;
  readonly field?: string | undefined;
  readonly children: ReactNode;
}

function Labelled({ label, hint, field, children }: LabelledProps) {
  const refusal = useContext(Refused);
  return (
    <label className="field">
      <span>
        {label} {hint && <small>{hint}</small>}
      </span>
      {children}
      {field !== undefined && refusal?.field === field && (
        <span className="trouble" role="alert">
          {refusal.message}
        </span>
      )}
    </label>
  );
}

function Line({ label, hint, field, value, onChange }: FieldProps) {
  return (
    <Labelled label={label} hint={hint} field={field}>
      <input value={value} onChange={(event) => onChange(event.target.value)} />
    </Labelled>
  );
}

function Lines({ label, hint, field, value, onChange, rows }: FieldProps & { readonly rows: number }) {
  return (
    <Labelled label={label} hint={hint} field={field}>
      <textarea rows={rows} value={value} onChange={(event) => onChange(event.target.value)} />
    </Labelled>
  );
}

function Choice({ label, value, options, onChange }: FieldProps & { readonly options: Readonly<Record<string, string>> }) {
  return (
    <Labelled label={label}>
      <select value={value} onChange={(event) => onChange(event.target.value)}>
        {Object.entries(options).map(([word, meaning]) => (
          <option key={word} value={word}>
            {meaning}
          </option>
        ))}
      </select>
    </Labelled>
  );
}

function Radio({ label, isChosen, onChoose }: { label: string; isChosen: boolean; onChoose: () => void }) {
  return (
    <label className="choice">
      <input type="radio" name="kind" checked={isChosen} onChange={onChoose} />
      {label}
    </label>
  );
}
