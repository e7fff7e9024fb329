/** The form fields of an agent and its runtime. */
import { useQuery } from "@tanstack/react-query";
import { createContext, useContext, type ReactNode } from "react";

import type { ApiError } from "../api/client";
import { defaultsQuery, modelsQuery } from "../api/queries";
import { modelLabel } from "../text/format";
import { toggleLine, type AgentDraft } from "./draft";

interface Props {
  readonly draft: AgentDraft;
  readonly onChange: (draft: AgentDraft) => void;
  readonly error: ApiError | null;
}

/** The error of the last request, shown at the field that it names. */
const FormErrorContext = createContext<ApiError | null>(null);
const FIELDS_WITH_ERRORS = new Set(["name", "slug", "description", "system_prompt", "temperature", "max_tokens", "tools", "tags"]);

export function isShownAtField(error: ApiError): boolean {
  return FIELDS_WITH_ERRORS.has(error.field ?? "");
}

export function AgentFields({ draft, onChange, error }: Props) {
  const set = (changes: Partial<AgentDraft>) => onChange({ ...draft, ...changes });
  return (
    <FormErrorContext value={error}>
      <div className="pair">
        <InputField label="Name" field="name" value={draft.name} onChange={(name) => set({ name })} />
        <InputField label="Slug" field="slug" hint="generated from the name if empty" value={draft.slug} onChange={(slug) => set({ slug })} />
      </div>
      <InputField label="Description" field="description" value={draft.description} onChange={(description) => set({ description })} />
      <fieldset>
        <legend>Type</legend>
        <RadioField label="Language model" isSelected={draft.kind === "llm"} onSelect={() => set({ kind: "llm" })} />
        <RadioField label="ACP program" isSelected={draft.kind === "acp"} onSelect={() => set({ kind: "acp" })} />
      </fieldset>
      {draft.kind === "llm" ? <ModelFields draft={draft} set={set} /> : <ProgramFields draft={draft} set={set} />}
      <AccessFields draft={draft} set={set} />
    </FormErrorContext>
  );
}

type Update = (changes: Partial<AgentDraft>) => void;

function ModelFields({ draft, set }: { draft: AgentDraft; set: Update }) {
  return (
    <>
      <TextAreaField label="System prompt" field="system_prompt" rows={6} value={draft.prompt} onChange={(prompt) => set({ prompt })} />
      <div className="pair">
        <ModelField value={draft.model} onChange={(model) => set({ model })} />
        <TextAreaField label="Fallback models" hint="one per line" rows={1} value={draft.fallbacks} onChange={(fallbacks) => set({ fallbacks })} />
      </div>
      <div className="pair">
        <InputField label="Temperature" field="temperature" hint="0 to 2; if empty, the default of the model" value={draft.temperature} onChange={(temperature) => set({ temperature })} />
        <InputField label="Max tokens" field="max_tokens" hint="per response" value={draft.maxTokens} onChange={(maxTokens) => set({ maxTokens })} />
      </div>
      <ToolsField value={draft.tools} onChange={(tools) => set({ tools })} />
    </>
  );
}

/** The tools of the server as toggle buttons; other tools are typed. */
function ToolsField({ value, onChange }: { value: string; onChange: (tools: string) => void }) {
  const { data } = useQuery(defaultsQuery);
  const selected = new Set(value.split("\n").map((line) => line.trim()));
  return (
    <div className="tools-field">
      <TextAreaField label="Tools" field="tools" hint="one per line: a name or a JSON object" rows={3} value={value} onChange={onChange} />
      <div className="choices" role="group" aria-label="Available tools">
        {data?.tools?.map((name) => (
          <button key={name} type="button" className="small" aria-pressed={selected.has(name)} onClick={() => onChange(toggleLine(value, name))}>
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
  const current = known.find((each) => each.id === value);
  return (
    <div>
      <LabelledField label="Model">
        <input
          list="models"
          placeholder="server default"
          value={current ? `${current.provider}:${current.name}` : value}
          onChange={(event) => onChange(event.target.value)}
        />
      </LabelledField>
      <datalist id="models">
        {known.map((each) => (
          <option key={each.id} value={`${each.provider}:${each.name}`}>
            {each.display_name ?? modelLabel(each.name)}
          </option>
        ))}
      </datalist>
    </div>
  );
}

function ProgramFields({ draft, set }: { draft: AgentDraft; set: Update }) {
  return (
    <>
      <InputField label="Command" value={draft.command} onChange={(command) => set({ command })} />
      <div className="pair">
        <TextAreaField label="Arguments" hint="one per line" rows={2} value={draft.args} onChange={(args) => set({ args })} />
        <TextAreaField
          label="Environment variables"
          hint="names only; the values come from the server's environment"
          rows={2}
          value={draft.variables}
          onChange={(variables) => set({ variables })}
        />
      </div>
    </>
  );
}

function AccessFields({ draft, set }: { draft: AgentDraft; set: Update }) {
  return (
    <>
      <div className="pair">
        <SelectField
          label="File access"
          value={draft.fileAccess}
          options={{ sandboxed: "session folder only", project: "repository", full: "all files of the user", "": "server default" }}
          onChange={(fileAccess) => set({ fileAccess: fileAccess as AgentDraft["fileAccess"] })}
        />
        <SelectField
          label="After a crash"
          value={draft.recovery}
          options={{ stop: "stop and wait", continue: "continue automatically" }}
          onChange={(recovery) => set({ recovery: recovery as AgentDraft["recovery"] })}
        />
      </div>
      {draft.fileAccess !== "" && (
        <div className="pair">
          <TextAreaField label="Allowed commands" hint="one per line" rows={2} value={draft.commands} onChange={(commands) => set({ commands })} />
          <TextAreaField label="Allowed domains" hint="one per line" rows={2} value={draft.domains} onChange={(domains) => set({ domains })} />
        </div>
      )}
      <InputField label="Tags" field="tags" hint="comma-separated" value={draft.tags} onChange={(tags) => set({ tags })} />
    </>
  );
}

interface FieldProps {
  readonly label: string;
  /** The name of the field in the API. */
  readonly field?: string;
  readonly hint?: string;
  readonly value: string;
  readonly onChange: (text: string) => void;
}

interface LabelledFieldProps {
  readonly label: string;
  readonly hint?: string | undefined;
  readonly field?: string | undefined;
  readonly children: ReactNode;
}

function LabelledField({ label, hint, field, children }: LabelledFieldProps) {
  const error = useContext(FormErrorContext);
  return (
    <label className="field">
      <span>
        {label} {hint && <small>{hint}</small>}
      </span>
      {children}
      {field !== undefined && error?.field === field && (
        <span className="error-message" role="alert">
          {error.message}
        </span>
      )}
    </label>
  );
}

function InputField({ label, hint, field, value, onChange }: FieldProps) {
  return (
    <LabelledField label={label} hint={hint} field={field}>
      <input value={value} onChange={(event) => onChange(event.target.value)} />
    </LabelledField>
  );
}

function TextAreaField({ label, hint, field, value, onChange, rows }: FieldProps & { readonly rows: number }) {
  return (
    <LabelledField label={label} hint={hint} field={field}>
      <textarea rows={rows} value={value} onChange={(event) => onChange(event.target.value)} />
    </LabelledField>
  );
}

function SelectField({ label, value, options, onChange }: FieldProps & { readonly options: Readonly<Record<string, string>> }) {
  return (
    <LabelledField label={label}>
      <select value={value} onChange={(event) => onChange(event.target.value)}>
        {Object.entries(options).map(([option, text]) => (
          <option key={option} value={option}>
            {text}
          </option>
        ))}
      </select>
    </LabelledField>
  );
}

function RadioField({ label, isSelected, onSelect }: { label: string; isSelected: boolean; onSelect: () => void }) {
  return (
    <label className="inline-field">
      <input type="radio" name="kind" checked={isSelected} onChange={onSelect} />
      {label}
    </label>
  );
}
