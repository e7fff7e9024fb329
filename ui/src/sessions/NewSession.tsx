/** The beginning of a session: who answers, where, and the first message. */
import { useMutation, useQuery } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";

import { newId, server, told, UNTIL_ANSWERED } from "../api/client";
import type { Agent, Session } from "../api/forms";
import { agentsQuery, defaultsQuery, queries, reposQuery } from "../api/queries";
import { holdKeys, leaveField, releaseKeys, useKeys } from "../app/keys";
import { Link } from "../app/Link";
import { Sending, Trouble } from "../app/Notice";
import { go } from "../app/router";
import { TextField } from "../app/TextField";
import { useTitle } from "../app/useTitle";

const BUILT_IN = "holdfast";
const TITLE_LONGEST = 80;
const LEAVING = { Escape: leaveField };

export function NewSession({ agent: given, isAsked }: { agent: string | null; isAsked: boolean }) {
  const [agent, setAgent] = useState(given ?? BUILT_IN);
  const [repo, setRepo] = useState("");
  const [text, setText] = useState("");
  const ids = useRef({ session: newId(), message: newId() });
  const field = useRef<HTMLTextAreaElement>(null);
  // Who only came by has the keys; and on a narrow screen it is there before it is seen.
  useEffect(() => {
    if (isAsked) field.current?.focus();
  }, [isAsked]);
  useKeys(LEAVING);
  useTitle(isAsked ? "New session" : "Sessions");
  const begin = useMutation({
    mutationFn: (wish: Wish) => begun(wish, ids.current),
    ...UNTIL_ANSWERED,
    onMutate: holdKeys,
    onError: releaseKeys,
    onSuccess: (session) => {
      queries.setQueryData(["session", session.id], session);
      void queries.invalidateQueries({ queryKey: ["sessions"] });
      go(`/sessions/${session.id}`, { toWrite: true });
    },
  });
  const send = () => {
    if (text.trim() !== "" && !begin.isPending) begin.mutate({ agent, repo, text });
  };
  return (
    <section className="beginning" aria-labelledby="new-title">
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
        <TextField ref={field} label="First message" value={text} onChange={setText} onSend={send} rows={5} placeholder="What shall be done?" />
        <div className="row">
          <AgentChoice value={agent} onChange={setAgent} />
          <RepoChoice value={repo} onChange={setRepo} />
          <span className="spread" />
          <button type="submit" className="primary" disabled={text.trim() === "" || begin.isPending}>
            Start <kbd>Enter</kbd>
          </button>
        </div>
        <Sending failures={begin.failureCount} isPending={begin.isPending} />
        <Trouble error={begin.error} />
      </form>
      <Hints />
    </section>
  );
}

interface Wish {
  readonly agent: string;
  readonly repo: string;
  readonly text: string;
}

/** Open a session and say the first words; sent again with the same ids, it is done once. */
async function begun(wish: Wish, ids: { session: string; message: string }): Promise<Session> {
  const title = wish.text.trim().split("\n", 1)[0]?.slice(0, TITLE_LONGEST) ?? null;
  const session = await told(
    server.POST("/v1/agents/{agent_id}/sessions", {
      params: { path: { agent_id: wish.agent } },
      body: { id: ids.session, title, ...(wish.repo ? { repo_id: wish.repo } : {}) },
    }),
  );
  await told(
    server.POST("/v1/sessions/{session_id}/messages", {
      params: { path: { session_id: session.id } },
      body: { role: "user", id: ids.message, content: { text: wish.text } },
    }),
  );
  return session;
}

function AgentChoice({ value, onChange }: { value: string; onChange: (slug: string) => void }) {
  const agents = useQuery(agentsQuery());
  const listed: readonly Pick<Agent, "slug" | "name">[] = agents.data?.data ?? [];
  // It comes with Holdfast, and is listed once it was first used.
  const choices = listed.some((each) => each.slug === BUILT_IN) ? listed : [{ slug: BUILT_IN, name: "Holdfast" }, ...listed];
  return (
    <label className="choice">
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

function RepoChoice({ value, onChange }: { value: string; onChange: (id: string) => void }) {
  const repos = useQuery(reposQuery);
  return (
    <label className="choice">
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
          No model is set, so the built-in offline one answers: it counts, sums and repeats, and costs nothing.{" "}
          <code>holdfast key set anthropic</code> and <code>HOLDFAST_MODEL</code> change that.
        </li>
      )}
      {repos.data?.repos.length === 0 && (
        <li>
          To let an agent work in a repository, register it: <code>holdfast repos add PATH</code>.
        </li>
      )}
      <li>Everything you see here is on disk before it is shown; close this window whenever you like.</li>
    </ul>
  );
}
