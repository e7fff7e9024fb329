/** All sessions, the ones that something happened to last on top. */
import { useQuery } from "@tanstack/react-query";
import { useMemo, useState } from "react";

import type { Session } from "../api/forms";
import { agentsQuery, PAGE, reposQuery, sessionsQuery, waitingQuery, type SessionFilter } from "../api/queries";
import { useKeys } from "../app/keys";
import { Link } from "../app/Link";
import { Trouble } from "../app/Notice";
import { go } from "../app/router";
import { useNow } from "../app/useNow";
import { ago, money } from "../text/format";
import { visible } from "../text/visible";
import { ForkMark, Status } from "./Status";
import { standingOf, STANDINGS, worded, type Standing } from "./standing";

const ALL: SessionFilter = { standing: "", agent: "", words: "" };

export function SessionList({ current }: { current: string | null }) {
  const [filter, setFilter] = useState(ALL);
  const [limit, setLimit] = useState(PAGE);
  const { data, error } = useQuery(sessionsQuery(filter, limit));
  const waiting = useQuery(waitingQuery);
  const asking = useMemo(() => new Set(waiting.data?.data.map((each) => each.session_id)), [waiting.data]);
  const sessions = useMemo(
    () => (data?.data ?? []).filter((each) => filter.standing === "" || standingOf(each, asking.has(each.id)) === filter.standing),
    [data, asking, filter.standing],
  );
  useKeys(useMemo(() => walk(sessions, current), [sessions, current]));
  return (
    <>
      <Filters filter={filter} onChange={setFilter} />
      <Trouble error={error} />
      <ul className="list" aria-label="Sessions">
        {sessions.map((session) => (
          <Entry key={session.id} session={session} isCurrent={session.id === current} isAsking={asking.has(session.id)} />
        ))}
      </ul>
      {data && sessions.length === 0 && <Nothing isFiltered={filter !== ALL} onClear={() => setFilter(ALL)} />}
      {data?.next_cursor && (
        <button type="button" className="quiet more" onClick={() => setLimit(limit + PAGE)}>
          Show older sessions
        </button>
      )}
    </>
  );
}

function walk(sessions: readonly Session[], current: string | null) {
  const at = sessions.findIndex((each) => each.id === current);
  const to = (session: Session | undefined) => () => {
    if (session) go(`/sessions/${session.id}`);
  };
  return { j: to(sessions[at + 1]), k: to(at < 0 ? undefined : sessions[at - 1]) };
}

interface EntryProps {
  readonly session: Session;
  readonly isCurrent: boolean;
  readonly isAsking: boolean;
}

function Entry({ session, isCurrent, isAsking }: EntryProps) {
  const now = useNow();
  const repos = useQuery(reposQuery);
  const repo = repos.data?.repos.find((each) => each.id === session.repo_id)?.name;
  return (
    <li>
      <Link to={`/sessions/${session.id}`} isCurrent={isCurrent} className="entry">
        <span className="entry-title">
          {session.forked_from !== null && <ForkMark />}
          {session.title ? visible(session.title) : <i>Untitled</i>}
        </span>
        <time dateTime={session.updated_at}>{ago(session.updated_at, now)}</time>
        <span className="entry-facts">
          <Status standing={standingOf(session, isAsking)} />
          <span>{visible(session.agent.name)}</span>
          {repo && <span>{visible(repo)}</span>}
        </span>
        {(session.cost.microcents ?? 0) > 0 && <span className="entry-cost">{money(session.cost)}</span>}
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
        value={filter.words}
        onChange={(event) => onChange({ ...filter, words: event.target.value })}
      />
      <select aria-label="Status" value={filter.standing} onChange={(event) => onChange({ ...filter, standing: event.target.value as Standing | "" })}>
        <option value="">Any status</option>
        {STANDINGS.map((each) => (
          <option key={each} value={each}>
            {worded(each)}
          </option>
        ))}
      </select>
      <select aria-label="Agent" value={filter.agent} onChange={(event) => onChange({ ...filter, agent: event.target.value })}>
        <option value="">Any agent</option>
        {agents.data?.data.map((agent) => (
          <option key={agent.id} value={agent.id}>
            {visible(agent.name)}
          </option>
        ))}
      </select>
      <Link to="/sessions?new" className="button primary">
        New
      </Link>
    </form>
  );
}

function Nothing({ isFiltered, onClear }: { isFiltered: boolean; onClear: () => void }) {
  if (!isFiltered) return <p className="hint">No sessions yet. The first one begins with a message.</p>;
  return (
    <p className="hint">
      No session is like that.{" "}
      <button type="button" className="quiet" onClick={onClear}>
        Show all
      </button>
    </p>
  );
}
