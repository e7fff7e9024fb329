/** One agent: what it is, what it may reach, and what lies on its desk. */
import { useMutation, useQuery } from "@tanstack/react-query";
import { useState } from "react";

import { newId, Refusal, server, told } from "../api/client";
import type { Agent, KnownProgram } from "../api/forms";
import { queries } from "../api/queries";
import { Link } from "../app/Link";
import { Empty, Trouble } from "../app/Notice";
import { go } from "../app/router";
import { useTitle } from "../app/useTitle";
import { visible } from "../text/visible";
import { AgentFields, isToldAtField } from "./AgentFields";
import { DeskView } from "./DeskView";
import { bodyOf, draftOf, EMPTY, type AgentDraft, type Unshown } from "./draft";
import { Programs } from "./Programs";

export default function AgentPage({ id, isNew }: { id: string | null; isNew: boolean }) {
  if (id !== null) return <Known id={id} />;
  return isNew ? <New /> : <Choose />;
}

function Choose() {
  useTitle("Agents");
  return (
    <Empty title="Agents">
      <p>
        An agent is who answers: a prompt and a model, or a program of its own that speaks the Agent Client Protocol.
        Sessions keep the agent as it was when they were opened; a change reaches new sessions only.
      </p>
      <Link to="/agents?new" className="button primary">
        New agent
      </Link>
    </Empty>
  );
}

function New() {
  const [draft, setDraft] = useState(EMPTY);
  const [base, setBase] = useState<Unshown | null>(null);
  const [id] = useState(newId);
  const choose = (chosen: AgentDraft, { runtime }: KnownProgram) => {
    setDraft(chosen);
    setBase({ runtime, grant: null });
  };
  const make = useMutation({
    // The description has a shape for each runtime; which one this is, the form decides.
    mutationFn: () => told(server.POST("/v1/agents", { body: { ...bodyOf(draft, base), id } as never })),
    onSuccess: (agent) => changed(agent),
  });
  return (
    <Sheet title="New agent" back>
      <Programs onChoose={choose} />
      <Form draft={draft} onChange={setDraft} onSend={() => make.mutate()} isBusy={make.isPending} word="Create" error={make.error} />
    </Sheet>
  );
}

function changed(agent: Agent): void {
  queries.setQueryData(["agent", agent.slug], agent);
  void queries.invalidateQueries({ queryKey: ["agents"] });
  go(`/agents/${agent.slug}`, { replace: true });
}

function Known({ id }: { id: string }) {
  const { data, error } = useQuery({
    queryKey: ["agent", id],
    queryFn: () => told(server.GET("/v1/agents/{agent_id}", { params: { path: { agent_id: id } } })),
  });
  if (error) {
    return (
      <Empty title="There is no such agent">
        <Trouble error={error} />
        <Link to="/agents">All agents</Link>
      </Empty>
    );
  }
  // By its last change: what somebody else wrote meanwhile is shown, and not written over.
  return data ? <Edit key={data.updated_at} agent={data} /> : null;
}

function Edit({ agent }: { agent: Agent }) {
  const [draft, setDraft] = useState(() => draftOf(agent));
  const isChanged = JSON.stringify(draft) !== JSON.stringify(draftOf(agent));
  const path = { agent_id: agent.id };
  const save = useMutation({
    mutationFn: () => told(server.PATCH("/v1/agents/{agent_id}", { params: { path }, body: bodyOf(draft, agent) })),
    onSuccess: changed,
  });
  const isArchived = agent.status === "archived";
  const archive = useMutation({
    mutationFn: async () => {
      if (isArchived) return told(server.PATCH("/v1/agents/{agent_id}", { params: { path }, body: { status: "active" } }));
      await told(server.DELETE("/v1/agents/{agent_id}", { params: { path } }));
      return told(server.GET("/v1/agents/{agent_id}", { params: { path } }));
    },
    onSuccess: changed,
  });
  return (
    <Sheet title={visible(agent.name)} back>
      <p className="facts">
        {isArchived && <b>archived</b>}
        <span>{agent.slug}</span>
        <span className="spread" />
        {!isArchived && (
          <Link to={`/sessions?new&agent=${agent.slug}`} className="button">
            New session
          </Link>
        )}
        <button type="button" onClick={() => archive.mutate()}>
          {isArchived ? "Bring back" : "Archive"}
        </button>
      </p>
      <Trouble error={archive.error} />
      <Form draft={draft} onChange={setDraft} onSend={() => save.mutate()} isBusy={save.isPending || !isChanged} word="Save" error={save.error} />
      <DeskView id={agent.id} />
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

interface FormProps {
  readonly draft: AgentDraft;
  readonly onChange: (draft: AgentDraft) => void;
  readonly onSend: () => void;
  readonly isBusy: boolean;
  readonly word: string;
  readonly error: unknown;
}

function Form({ draft, onChange, onSend, isBusy, word, error }: FormProps) {
  const refusal = error instanceof Refusal ? error : null;
  return (
    <form
      className="agent-form"
      onSubmit={(event) => {
        event.preventDefault();
        onSend();
      }}
    >
      <AgentFields draft={draft} onChange={onChange} refusal={refusal} />
      <div className="row-of-buttons">
        <button type="submit" className="primary" disabled={isBusy || draft.name.trim() === ""}>
          {word}
        </button>
      </div>
      {(refusal === null || !isToldAtField(refusal)) && <Trouble error={error} />}
    </form>
  );
}
