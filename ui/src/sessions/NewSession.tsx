/** The form for a new session: the agent, the repository and the first message. */
import { useMutation, useQuery } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";

import { newId, RETRY_UNTIL_ANSWERED, server, unwrap } from "../api/client";
import { agentsQuery, defaultsQuery, queryClient, reposQuery } from "../api/queries";
import type { Agent, Session } from "../api/types";
import { Link } from "../app/Link";
import { ErrorMessage, RetryNotice } from "../app/notices";
import { navigate } from "../app/router";
import { blurField, resumeShortcuts, suspendShortcuts, useShortcuts } from "../app/shortcuts";
import { TextField } from "../app/TextField";
import { useTitle } from "../app/useTitle";

const BUILT_IN = "holdfast";
const MAX_TITLE_LENGTH = 80;
const SHORTCUTS = { Escape: blurField };

export function NewSession({ agent: initialAgent, autoFocus }: { agent: string | null; autoFocus: boolean }) {
  const [agent, setAgent] = useState(initialAgent ?? BUILT_IN);
  const [repo, setRepo] = useState("");
  const [text, setText] = useState("");
  const ids = useRef({ session: newId(), message: newId() });
  const field = useRef<HTMLTextAreaElement>(null);
  // Without autofocus the shortcuts work; on a narrow screen the form is rendered before it is visible.
  useEffect(() => {
    if (autoFocus) field.current?.focus();
  }, [autoFocus]);
  useShortcuts(SHORTCUTS);
  useTitle(autoFocus ? "New session" : "Sessions");
  const create = useMutation({
    mutationFn: (request: NewSessionRequest) => createSession(request, ids.current),
    ...RETRY_UNTIL_ANSWERED,
    onMutate: suspendShortcuts,
    onError: resumeShortcuts,
    onSuccess: (session) => {
      queryClient.setQueryData(["session", session.id], session);
      void queryClient.invalidateQueries({ queryKey: ["sessions"] });
      navigate(`/sessions/${session.id}`, { focusComposer: true });
    },
  });
  const send = () => {
    if (text.trim() !== "" && !create.isPending) create.mutate({ agent, repo, text });
  };
  return (
    <section className="new-session" aria-labelledby="new-title">
      <Link to="/sessions" className="back">
        ‹ Sessions
      </Link>
      <h1 id="new-title">New session</h1>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          send();
        }}
      >
        <TextField ref={field} label="First message" value={text} onChange={setText} onSend={send} rows={5} placeholder="Describe the task" />
        <div className="row">
          <AgentSelect value={agent} onChange={setAgent} />
          <RepoSelect value={repo} onChange={setRepo} />
          <span className="spacer" />
          <button type="submit" className="primary" disabled={text.trim() === "" || create.isPending}>
            Start <kbd>Enter</kbd>
          </button>
        </div>
        <RetryNotice failures={create.failureCount} isPending={create.isPending} />
        <ErrorMessage error={create.error} />
      </form>
      <Hints />
    </section>
  );
}

interface NewSessionRequest {
  readonly agent: string;
  readonly repo: string;
  readonly text: string;
}

/** Open a session and send the first message; idempotent, because both requests carry ids. */
async function createSession(request: NewSessionRequest, ids: { session: string; message: string }): Promise<Session> {
  const title = request.text.trim().split("\n", 1)[0]?.slice(0, MAX_TITLE_LENGTH) ?? null;
  const { attended_turn_cap: turn_cap } = await queryClient.ensureQueryData(defaultsQuery);
  const session = await unwrap(
    server.POST("/v1/agents/{agent_id}/sessions", {
      params: { path: { agent_id: request.agent } },
      body: { id: ids.session, title, turn_cap: turn_cap ?? null, ...(request.repo ? { repo_id: request.repo } : {}) },
    }),
  );
  await unwrap(
    server.POST("/v1/sessions/{session_id}/messages", {
      params: { path: { session_id: session.id } },
      body: { role: "user", id: ids.message, content: { text: request.text } },
    }),
  );
  return session;
}

function AgentSelect({ value, onChange }: { value: string; onChange: (slug: string) => void }) {
  const agents = useQuery(agentsQuery());
  const listed: readonly Pick<Agent, "slug" | "name">[] = agents.data?.data ?? [];
  // The built-in agent is listed only after its first use.
  const choices = listed.some((each) => each.slug === BUILT_IN) ? listed : [{ slug: BUILT_IN, name: "Holdfast" }, ...listed];
  return (
    <label className="inline-field">
      Agent
      <select value={value} onChange={(event) => onChange(event.target.value)}>
        {choices.map((each) => (
          <option key={each.slug} value={each.slug}>
            {each.name}
          </option>
        ))}
      </select>
    </label>
  );
}

function RepoSelect({ value, onChange }: { value: string; onChange: (id: string) => void }) {
  const repos = useQuery(reposQuery);
  return (
    <label className="inline-field">
      Repository
      <select value={value} onChange={(event) => onChange(event.target.value)}>
        <option value="">none</option>
        {repos.data?.repos.map((repo) => (
          <option key={repo.id} value={repo.id}>
            {repo.name}
          </option>
        ))}
      </select>
    </label>
  );
}

function Hints() {
  const defaults = useQuery(defaultsQuery);
  const repos = useQuery(reposQuery);
  const isOffline = defaults.data?.model.startsWith("offline:") ?? false;
  return (
    <ul className="hints">
      {isOffline && (
        <li>
          No model is configured, so the built-in offline model answers. It counts, sums and repeats, and costs nothing.
          To change that, use <code>holdfast key set anthropic</code> and <code>HOLDFAST_MODEL</code>.
        </li>
      )}
      {repos.data?.repos.length === 0 && (
        <li>
          To let an agent work in a repository, register it: <code>holdfast repos add PATH</code>.
        </li>
      )}
      <li>Everything is stored on disk before it is shown here; you can close this window at any time.</li>
    </ul>
  );
}
