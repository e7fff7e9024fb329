/** What a session is, where it stands, what it cost, and what can be done with it as a whole. */
import { useMutation, useQuery } from "@tanstack/react-query";
import { useState } from "react";

import { newId, server, told } from "../api/client";
import type { Model, Session } from "../api/forms";
import { approvalsQuery, modelsQuery, queries, reposQuery } from "../api/queries";
import { Link } from "../app/Link";
import { go } from "../app/router";
import { ForkMark, Status } from "../sessions/Status";
import { standingOf } from "../sessions/standing";
import { count, modelName, money } from "../text/format";
import { visible } from "../text/visible";
import type { Conversation } from "./conversation";
import { Deletion } from "./Deletion";
import { Menu } from "./Menu";
import type { Link as Line } from "./useConversation";

interface Props {
  readonly session: Session;
  readonly conversation: Conversation;
  readonly link: Line;
  readonly onTrouble: (error: unknown) => void;
}

export function Header({ session, conversation, link, onTrouble }: Props) {
  const approvals = useQuery(approvalsQuery(session.id));
  const models = useQuery(modelsQuery);
  const repos = useQuery(reposQuery);
  const repo = repos.data?.repos.find((each) => each.id === session.repo_id);
  const model = modelOf(session, conversation, models.data?.data ?? []);
  const isAsking = (approvals.data?.data.length ?? 0) > 0;
  const shown = conversation.isRunning ? { ...session, status: "running" as const } : session;
  return (
    <header className="session-head">
      <Link to="/sessions" className="back" label="Back to the sessions">
        ‹
      </Link>
      <Title session={session} onTrouble={onTrouble} />
      <Actions session={session} onTrouble={onTrouble} />
      <p className="facts">
        <Status standing={standingOf(shown, isAsking)} />
        <Link to={`/agents/${session.agent.slug}`}>{visible(session.agent.name)}</Link>
        {model && <span>{model.display_name ?? modelName(`${model.provider}:${model.name}`)}</span>}
        {repo && <span title={repo.path}>{visible(repo.name)}</span>}
        <span className="spread" />
        <ContextMeter conversation={conversation} model={model} />
        <span title={`${count(session.usage.input_tokens)} tokens in, ${count(session.usage.output_tokens)} out`}>{money(session.cost)}</span>
        <span className={`line ${link}`} title={LINES[link]}>
          {link}
        </span>
      </p>
    </header>
  );
}

const LINES: Readonly<Record<Line, string>> = {
  opening: "The session is being read.",
  live: "What happens is shown as it happens.",
  lost: "The line is broken; it is tried again.",
};

function modelOf(session: Session, conversation: Conversation, models: readonly Model[]): Model | null {
  const id = session.model_id ?? session.agent.model_ids[0];
  const named = models.find((each) => `${each.provider}:${each.name}` === conversation.model);
  return named ?? models.find((each) => each.id === id) ?? null;
}

function ContextMeter({ conversation, model }: { conversation: Conversation; model: Model | null }) {
  if (conversation.context === null) return null;
  const { input_tokens, cached_input_tokens, output_tokens } = conversation.context;
  const used = input_tokens + cached_input_tokens + output_tokens;
  const room = model?.context_window ?? null;
  if (room === null) return <span title="What the last request held">{count(used)} tokens</span>;
  const share = Math.min(1, used / room);
  return (
    <span className="meter" title={`${count(used)} of ${count(room)} tokens of the model's window`}>
      <meter min={0} max={1} high={0.8} value={share} aria-label="How full the model's window is" />
      {Math.round(share * 100)} %
    </span>
  );
}

function Title({ session, onTrouble }: { session: Session; onTrouble: (error: unknown) => void }) {
  const [text, setText] = useState<string | null>(null);
  const rename = useMutation({
    mutationFn: (title: string) =>
      told(
        server.PATCH("/v1/sessions/{session_id}", {
          params: { path: { session_id: session.id } },
          body: { title: title === "" ? null : title },
        }),
      ),
    onSuccess: (changed) => {
      queries.setQueryData(["session", session.id], changed);
      void queries.invalidateQueries({ queryKey: ["sessions"] });
    },
    onError: onTrouble,
    onSettled: () => setText(null),
  });
  if (text === null) {
    return (
      <h1>
        <button type="button" className="title" onClick={() => setText(session.title ?? "")} title="Rename">
          {session.forked_from !== null && <ForkMark />}
          {session.title ? visible(session.title) : "Untitled"}
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

function Actions({ session, onTrouble }: { session: Session; onTrouble: (error: unknown) => void }) {
  const path = { session_id: session.id };
  const isClosed = session.state === "completed" || session.state === "cancelled";
  const done = (changed: Session) => {
    queries.setQueryData(["session", session.id], changed);
    void queries.invalidateQueries({ queryKey: ["sessions"] });
  };
  const attempt = (asked: Promise<Session>, then: (changed: Session) => void = done) => void asked.then(then, onTrouble);
  const fork = () =>
    attempt(told(server.POST("/v1/sessions/{session_id}/fork", { params: { path }, body: { id: newId() } })), (made) => go(`/sessions/${made.id}`, { toWrite: true }));
  const close = () => attempt(told(server.POST("/v1/sessions/{session_id}/close", { params: { path }, body: { as: "completed" } })));
  const resume = () => attempt(told(server.POST("/v1/sessions/{session_id}/resume", { params: { path }, body: {} })));
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
      {isDeleting && <Deletion session={session} onClose={() => setDeleting(false)} />}
    </>
  );
}

const EXPORTS = [
  ["markdown", "Markdown"],
  ["jsonl", "JSON lines"],
  ["workflow", "workflow"],
] as const;
