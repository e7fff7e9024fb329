/** All sessions, most recently active first. */
import { useQuery } from "@tanstack/react-query";
import { useMemo, useState } from "react";

import { agentsQuery, PAGE_SIZE, pendingApprovalsQuery, reposQuery, sessionsQuery, type SessionFilter } from "../api/queries";
import type { Session } from "../api/types";
import { Link } from "../app/Link";
import { ErrorMessage } from "../app/notices";
import { navigate } from "../app/router";
import { useShortcuts } from "../app/shortcuts";
import { useNow } from "../app/useNow";
import { formatAge, formatCost } from "../text/format";
import { escapeInvisible } from "../text/invisible";
import { SESSION_STATUSES, sessionStatus, statusLabel, type SessionStatus } from "./session_status";
import { ForkIcon, Status } from "./Status";

const ALL: SessionFilter = { status: "", agent: "", title: "" };

export function SessionList({ current }: { current: string | null }) {
  const [filter, setFilter] = useState(ALL);
  const [limit, setLimit] = useState(PAGE_SIZE);
  const { data, error } = useQuery(sessionsQuery(filter, limit));
  const approvals = useQuery(pendingApprovalsQuery);
  const waiting = useMemo(() => new Set(approvals.data?.data.map((each) => each.session_id)), [approvals.data]);
  const sessions = useMemo(
    () => (data?.data ?? []).filter((each) => filter.status === "" || sessionStatus(each, waiting.has(each.id)) === filter.status),
    [data, waiting, filter.status],
  );
  useShortcuts(useMemo(() => neighbourShortcuts(sessions, current), [sessions, current]));
  return (
    <>
      <Filters filter={filter} onChange={setFilter} />
      <ErrorMessage error={error} />
      <ul className="list" aria-label="Sessions">
        {sessions.map((session) => (
          <SessionEntry key={session.id} session={session} isCurrent={session.id === current} isWaiting={waiting.has(session.id)} />
        ))}
      </ul>
      {data && sessions.length === 0 && <NoSessions isFiltered={filter !== ALL} onClear={() => setFilter(ALL)} />}
      {data?.next_cursor && (
        <button type="button" className="quiet more" onClick={() => setLimit(limit + PAGE_SIZE)}>
          Show older sessions
        </button>
      )}
    </>
  );
}

function neighbourShortcuts(sessions: readonly Session[], current: string | null) {
  const at = sessions.findIndex((each) => each.id === current);
  const openSession = (session: Session | undefined) => () => {
    if (session) navigate(`/sessions/${session.id}`);
  };
  return { j: openSession(sessions[at + 1]), k: openSession(at < 0 ? undefined : sessions[at - 1]) };
}

interface SessionEntryProps {
  readonly session: Session;
  readonly isCurrent: boolean;
  readonly isWaiting: boolean;
}

function SessionEntry({ session, isCurrent, isWaiting }: SessionEntryProps) {
  const now = useNow();
  const repos = useQuery(reposQuery);
  const repo = repos.data?.repos.find((each) => each.id === session.repo_id)?.name;
  return (
    <li>
      <Link to={`/sessions/${session.id}`} isCurrent={isCurrent} className="entry">
        <span className="entry-title">
          {session.forked_from !== null && <ForkIcon />}
          {session.title ? escapeInvisible(session.title) : <i>Untitled</i>}
        </span>
        <time dateTime={session.updated_at}>{formatAge(session.updated_at, now)}</time>
        <span className="entry-facts">
          <Status status={sessionStatus(session, isWaiting)} />
          <span>{escapeInvisible(session.agent.name)}</span>
          {repo && <span>{escapeInvisible(repo)}</span>}
        </span>
        {((session.cost.microcents ?? 0) > 0 || !session.cost.priced) && <span className="entry-cost">{formatCost(session.cost)}</span>}
      </Link>
    </li>
  );
}

function Filters({ filter, onChange }: { filter: SessionFilter; onChange: (filter: SessionFilter) => void }) {
  const agents = useQuery(agentsQuery("all"));
  return (
    <form className="filters" role="search" onSubmit={(event) => event.preventDefault()}>
      <input
        type="search"
        placeholder="Filter by title"
        aria-label="Filter by title"
        value={filter.title}
        onChange={(event) => onChange({ ...filter, title: event.target.value })}
      />
      <select aria-label="Status" value={filter.status} onChange={(event) => onChange({ ...filter, status: event.target.value as SessionStatus | "" })}>
        <option value="">Any status</option>
        {SESSION_STATUSES.map((each) => (
          <option key={each} value={each}>
            {statusLabel(each)}
          </option>
        ))}
      </select>
      <select aria-label="Agent" value={filter.agent} onChange={(event) => onChange({ ...filter, agent: event.target.value })}>
        <option value="">Any agent</option>
        {agents.data?.data.map((agent) => (
          <option key={agent.id} value={agent.id}>
            {escapeInvisible(agent.name)}
          </option>
        ))}
      </select>
      <Link to="/sessions?new" className="button primary">
        New
      </Link>
    </form>
  );
}

function NoSessions({ isFiltered, onClear }: { isFiltered: boolean; onClear: () => void }) {
  if (!isFiltered) return <p className="hint">No sessions yet. Send a message to start one.</p>;
  return (
    <p className="hint">
      No matching sessions.{" "}
      <button type="button" className="quiet" onClick={onClear}>
        Show all
      </button>
    </p>
  );
}
