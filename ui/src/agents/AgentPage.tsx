/** One agent: its settings and its active zone. */
import { useMutation, useQuery } from "@tanstack/react-query";
import { useState } from "react";

import { ApiError, newId, server, unwrap } from "../api/client";
import { queryClient } from "../api/queries";
import type { Agent, KnownProgram } from "../api/types";
import { Link } from "../app/Link";
import { EmptyState, ErrorMessage } from "../app/notices";
import { navigate } from "../app/router";
import { useTitle } from "../app/useTitle";
import { escapeInvisible } from "../text/invisible";
import { AgentFields, isShownAtField } from "./AgentFields";
import { draftFromAgent, EMPTY_DRAFT, toRequestBody, type AgentDraft, type HiddenFields } from "./draft";
import { Programs } from "./Programs";
import { ZoneView } from "./ZoneView";

export default function AgentPage({ id, isNew }: { id: string | null; isNew: boolean }) {
  if (id !== null) return <AgentLoader id={id} />;
  return isNew ? <NewAgent /> : <AgentIntro />;
}

function AgentIntro() {
  useTitle("Agents");
  return (
    <EmptyState title="Agents">
      <p>
        An agent is a prompt and a model, or a program that speaks the Agent Client Protocol. A session keeps the agent
        as it was when the session was opened; changes apply to new sessions only.
      </p>
      <Link to="/agents?new" className="button primary">
        New agent
      </Link>
    </EmptyState>
  );
}

function NewAgent() {
  const [draft, setDraft] = useState(EMPTY_DRAFT);
  const [base, setBase] = useState<HiddenFields | null>(null);
  const [id] = useState(newId);
  const chooseProgram = (chosen: AgentDraft, { runtime }: KnownProgram) => {
    setDraft(chosen);
    setBase({ runtime, grant: null });
  };
  const create = useMutation({
    // The schema is a union over the runtimes; the form decides which member this is.
    mutationFn: () => unwrap(server.POST("/v1/agents", { body: { ...toRequestBody(draft, base), id } as never })),
    onSuccess: (agent) => showSaved(agent),
  });
  return (
    <Sheet title="New agent" back>
      <Programs onChoose={chooseProgram} />
      <AgentForm draft={draft} onChange={setDraft} onSubmit={() => create.mutate()} isBusy={create.isPending} submitLabel="Create" error={create.error} />
    </Sheet>
  );
}

function showSaved(agent: Agent): void {
  queryClient.setQueryData(["agent", agent.slug], agent);
  void queryClient.invalidateQueries({ queryKey: ["agents"] });
  navigate(`/agents/${agent.slug}`, { replace: true });
}

function AgentLoader({ id }: { id: string }) {
  const { data, error } = useQuery({
    queryKey: ["agent", id],
    queryFn: () => unwrap(server.GET("/v1/agents/{agent_id}", { params: { path: { agent_id: id } } })),
  });
  if (error) {
    return (
      <EmptyState title="Agent not found">
        <ErrorMessage error={error} />
        <Link to="/agents">All agents</Link>
      </EmptyState>
    );
  }
  // Keyed by the last change: a change by another client resets the form instead of being overwritten.
  return data ? <AgentEditor key={data.updated_at} agent={data} /> : null;
}

function AgentEditor({ agent }: { agent: Agent }) {
  const [draft, setDraft] = useState(() => draftFromAgent(agent));
  const isChanged = JSON.stringify(draft) !== JSON.stringify(draftFromAgent(agent));
  const path = { agent_id: agent.id };
  const save = useMutation({
    mutationFn: () => unwrap(server.PATCH("/v1/agents/{agent_id}", { params: { path }, body: toRequestBody(draft, agent) })),
    onSuccess: showSaved,
  });
  const isArchived = agent.status === "archived";
  const archive = useMutation({
    mutationFn: async () => {
      if (isArchived) return unwrap(server.PATCH("/v1/agents/{agent_id}", { params: { path }, body: { status: "active" } }));
      await unwrap(server.DELETE("/v1/agents/{agent_id}", { params: { path } }));
      return unwrap(server.GET("/v1/agents/{agent_id}", { params: { path } }));
    },
    onSuccess: showSaved,
  });
  return (
    <Sheet title={escapeInvisible(agent.name)} back>
      <p className="facts">
        {isArchived && <b>archived</b>}
        <span>{agent.slug}</span>
        <span className="spacer" />
        {!isArchived && (
          <Link to={`/sessions?new&agent=${agent.slug}`} className="button">
            New session
          </Link>
        )}
        <button type="button" onClick={() => archive.mutate()}>
          {isArchived ? "Unarchive" : "Archive"}
        </button>
      </p>
      <ErrorMessage error={archive.error} />
      <AgentForm draft={draft} onChange={setDraft} onSubmit={() => save.mutate()} isBusy={save.isPending || !isChanged} submitLabel="Save" error={save.error} />
      <ZoneView id={agent.id} />
    </Sheet>
  );
}

function Sheet({ title, back, children }: { title: string; back?: boolean; children: React.ReactNode }) {
  useTitle(title);
  return (
    <section className="sheet">
      {back && (
        <Link to="/agents" className="back">
          ‹ Agents
        </Link>
      )}
      <h1>{title}</h1>
      {children}
    </section>
  );
}

interface AgentFormProps {
  readonly draft: AgentDraft;
  readonly onChange: (draft: AgentDraft) => void;
  readonly onSubmit: () => void;
  readonly isBusy: boolean;
  readonly submitLabel: string;
  readonly error: unknown;
}

function AgentForm({ draft, onChange, onSubmit, isBusy, submitLabel, error }: AgentFormProps) {
  const apiError = error instanceof ApiError ? error : null;
  return (
    <form
      className="agent-form"
      onSubmit={(event) => {
        event.preventDefault();
        onSubmit();
      }}
    >
      <AgentFields draft={draft} onChange={onChange} error={apiError} />
      <div className="button-row">
        <button type="submit" className="primary" disabled={isBusy || draft.name.trim() === ""}>
          {submitLabel}
        </button>
      </div>
      {(apiError === null || !isShownAtField(apiError)) && <ErrorMessage error={error} />}
    </form>
  );
}
