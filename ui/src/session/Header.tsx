/** The header of a session: title, status, cost and actions. */
import { useMutation, useQuery } from "@tanstack/react-query";
import { useState } from "react";

import { newId, server, unwrap } from "../api/client";
import { approvalsQuery, modelsQuery, queryClient, reposQuery, treeQuery } from "../api/queries";
import type { Model, Session } from "../api/types";
import { Link } from "../app/Link";
import { navigate } from "../app/router";
import { sessionStatus } from "../sessions/session_status";
import { ForkIcon, Status } from "../sessions/Status";
import { formatCost, formatCount, modelLabel } from "../text/format";
import { escapeInvisible } from "../text/invisible";
import type { Conversation } from "./conversation";
import { DeleteDialog } from "./DeleteDialog";
import { Menu } from "./Menu";
import type { Connection } from "./useConversation";

interface Props {
  readonly session: Session;
  readonly conversation: Conversation;
  readonly connection: Connection;
  readonly onError: (error: unknown) => void;
}

export function Header({ session, conversation, connection, onError }: Props) {
  const approvals = useQuery(approvalsQuery(session.id));
  const models = useQuery(modelsQuery);
  const repos = useQuery(reposQuery);
  const repo = repos.data?.repos.find((each) => each.id === session.repo_id);
  const model = findModel(session, conversation, models.data?.data ?? []);
  const isWaiting = (approvals.data?.data.length ?? 0) > 0;
  const shown = conversation.isRunning ? { ...session, status: "running" as const } : session;
  return (
    <header className="session-head">
      <Link to="/sessions" className="back" label="Back to sessions">
        ‹
      </Link>
      <Title session={session} onError={onError} />
      <Actions session={session} onError={onError} />
      <p className="facts">
        <Status status={sessionStatus(shown, isWaiting)} />
        <Link to={`/agents/${session.agent.slug}`}>{escapeInvisible(session.agent.name)}</Link>
        {model && <span>{model.display_name ?? modelLabel(`${model.provider}:${model.name}`)}</span>}
        {repo && <span title={repo.path}>{escapeInvisible(repo.name)}</span>}
        {session.process?.sandbox && <span title={`The agent's program is ${session.process.sandbox}.`}>{session.process.sandbox.split(/[:,]/, 1)}</span>}
        <span className="spacer" />
        <ContextMeter conversation={conversation} model={model} />
        <span title={`${formatCount(session.usage.input_tokens)} tokens in, ${formatCount(session.usage.output_tokens)} out`}>{formatCost(session.cost)}</span>
        <span className={`connection ${connection}`} title={CONNECTION_TITLES[connection]}>
          {connection}
        </span>
      </p>
      <Family session={session} />
    </header>
  );
}

/** Links to the session that opened this one, and to all that were opened below it. */
function Family({ session }: { session: Session }) {
  const tree = useQuery(treeQuery(session.id, session.children));
  if (session.parent === null && session.children === 0) return null;
  return (
    <nav className="facts" aria-label="Related sessions">
      {session.parent && <Link to={`/sessions/${session.parent.session_id}`}>Started by another session</Link>}
      {tree.data && <Children of={session.id} sessions={tree.data.data} />}
    </nav>
  );
}

function Children({ of, sessions }: { of: string; sessions: readonly Session[] }) {
  const children = sessions.filter((each) => each.parent?.session_id === of);
  if (children.length === 0) return null;
  return (
    <ul className="children">
      {children.map((child) => (
        <li key={child.id}>
          <Link to={`/sessions/${child.id}`}>{`Started: ${escapeInvisible(child.title ?? child.agent.name)} (${child.status})`}</Link>
          <Children of={child.id} sessions={sessions} />
        </li>
      ))}
    </ul>
  );
}

const CONNECTION_TITLES: Readonly<Record<Connection, string>> = {
  connecting: "Loading the session.",
  live: "Connected: new events are shown as they happen.",
  disconnected: "Connection lost; reconnecting.",
};

function findModel(session: Session, conversation: Conversation, models: readonly Model[]): Model | null {
  const id = session.model_id ?? session.agent.model_ids[0];
  const current = models.find((each) => `${each.provider}:${each.name}` === conversation.model);
  return current ?? models.find((each) => each.id === id) ?? null;
}

function ContextMeter({ conversation, model }: { conversation: Conversation; model: Model | null }) {
  if (conversation.context === null) return null;
  const { input_tokens, cached_input_tokens, output_tokens } = conversation.context;
  const used = input_tokens + cached_input_tokens + output_tokens;
  const contextWindow = model?.context_window ?? null;
  if (contextWindow === null) return <span title="Tokens of the last request">{formatCount(used)} tokens</span>;
  const share = Math.min(1, used / contextWindow);
  return (
    <span className="meter" title={`${formatCount(used)} of ${formatCount(contextWindow)} tokens of the context window`}>
      <meter min={0} max={1} high={0.8} value={share} aria-label="Context window usage" />
      {Math.round(share * 100)} %
    </span>
  );
}

function Title({ session, onError }: { session: Session; onError: (error: unknown) => void }) {
  const [text, setText] = useState<string | null>(null);
  const rename = useMutation({
    mutationFn: (title: string) =>
      unwrap(
        server.PATCH("/v1/sessions/{session_id}", {
          params: { path: { session_id: session.id } },
          body: { title: title === "" ? null : title },
        }),
      ),
    onSuccess: (changed) => {
      queryClient.setQueryData(["session", session.id], changed);
      void queryClient.invalidateQueries({ queryKey: ["sessions"] });
    },
    onError,
    onSettled: () => setText(null),
  });
  if (text === null) {
    return (
      <h1>
        <button type="button" className="title" onClick={() => setText(session.title ?? "")} title="Rename">
          {session.forked_from !== null && <ForkIcon />}
          {session.title ? escapeInvisible(session.title) : "Untitled"}
        </button>
      </h1>
    );
  }
  return (
    <input
      className="title"
      aria-label="Title"
      autoFocus
      onFocus={(event) => event.target.select()}
      maxLength={255}
      value={text}
      onChange={(event) => setText(event.target.value)}
      onBlur={() => rename.mutate(text.trim())}
      onKeyDown={(event) => {
        if (event.key === "Enter") rename.mutate(text.trim());
        if (event.key === "Escape") {
          event.stopPropagation();
          setText(null);
        }
      }}
    />
  );
}

function Actions({ session, onError }: { session: Session; onError: (error: unknown) => void }) {
  const path = { session_id: session.id };
  const isClosed = session.state === "completed" || session.state === "cancelled";
  const updateSession = (changed: Session) => {
    queryClient.setQueryData(["session", session.id], changed);
    void queryClient.invalidateQueries({ queryKey: ["sessions"] });
  };
  const run = (request: Promise<Session>, onSuccess: (changed: Session) => void = updateSession) => void request.then(onSuccess, onError);
  const fork = () =>
    run(unwrap(server.POST("/v1/sessions/{session_id}/fork", { params: { path }, body: { id: newId() } })), (created) => navigate(`/sessions/${created.id}`, { focusComposer: true }));
  const close = () => run(unwrap(server.POST("/v1/sessions/{session_id}/close", { params: { path }, body: { as: "completed" } })));
  const resume = () => run(unwrap(server.POST("/v1/sessions/{session_id}/resume", { params: { path }, body: {} })));
  const [isDeleting, setDeleting] = useState(false);
  return (
    <>
      <Menu label="Session">
        <button type="button" onClick={fork}>
          Fork
        </button>
        <button type="button" onClick={isClosed ? resume : close}>
          {isClosed ? "Resume" : "Close"}
        </button>
        <hr />
        {EXPORTS.map(([format, name]) => (
          <a key={format} href={`/v1/sessions/${session.id}/export?format=${format}`} download>
            Export as {name}
          </a>
        ))}
        <hr />
        <button type="button" className="danger" onClick={() => setDeleting(true)}>
          Delete …
        </button>
      </Menu>
      {isDeleting && <DeleteDialog session={session} onClose={() => setDeleting(false)} />}
    </>
  );
}

const EXPORTS = [
  ["markdown", "Markdown"],
  ["jsonl", "JSON lines"],
  ["workflow", "workflow"],
] as const;
