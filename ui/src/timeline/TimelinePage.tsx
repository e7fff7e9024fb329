/** The timeline: sessions over time and the cost of each day. */
import { useQuery } from "@tanstack/react-query";
import { useMemo, useState } from "react";

import { server, unwrap } from "../api/client";
import { pendingApprovalsQuery, sessionsQuery } from "../api/queries";
import { Link } from "../app/Link";
import { EmptyState, ErrorMessage } from "../app/notices";
import { useNow } from "../app/useNow";
import { useTitle } from "../app/useTitle";
import { formatDollars } from "../text/format";
import { DayList } from "./DayList";
import { sessionIdOf, toTimelineEntry } from "./entries";
import { TimelineChart } from "./TimelineChart";

const HOUR = 3_600_000;
const RANGES = { "24 hours": 24 * HOUR, "7 days": 7 * 24 * HOUR, "30 days": 30 * 24 * HOUR, "90 days": 90 * 24 * HOUR } as const;
type Range = keyof typeof RANGES;
const MAX_SESSIONS = 200;

export default function TimelinePage() {
  const [range, setRange] = useState<Range>("7 days");
  const now = useNow();
  const history = useQuery({
    queryKey: ["history"],
    queryFn: () => unwrap(server.GET("/v1/history", { params: { query: { limit: 100 } } })),
    refetchInterval: 10_000,
  });
  const sessions = useQuery(sessionsQuery({ status: "", agent: "", title: "" }, MAX_SESSIONS));
  const approvals = useQuery(pendingApprovalsQuery);
  const costs = useQuery({
    queryKey: ["costs", "day"],
    queryFn: () => unwrap(server.GET("/v1/costs", { params: { query: { group_by: "day" } } })),
    refetchInterval: 30_000,
  });
  const from = now - RANGES[range];
  const entries = useMemo(() => {
    const known = new Map(sessions.data?.data.map((each) => [each.id, each]));
    const waiting = new Set(approvals.data?.data.map((each) => each.session_id));
    return (history.data?.data ?? [])
      .flatMap((each) => toTimelineEntry(each, known.get(sessionIdOf(each)), now, waiting.has(sessionIdOf(each))) ?? [])
      .filter((each) => each.to >= from);
  }, [history.data, sessions.data, approvals.data, now, from]);
  const days = (costs.data?.data ?? []).filter((each) => Date.parse(each.key) >= from - 24 * HOUR);
  const total = days.reduce((sum, each) => sum + each.cost_microcents, 0);
  useTitle("Timeline");
  return (
    <section className="timeline" aria-labelledby="timeline-title">
      <Link to="/sessions" className="back">
        ‹ Sessions
      </Link>
      <header>
        <h1 id="timeline-title">Timeline</h1>
        <span className="muted">
          {entries.length} sessions, {formatDollars(total)}
        </span>
        <span className="spacer" />
        <div className="ranges" role="group" aria-label="Time range">
          {(Object.keys(RANGES) as Range[]).map((each) => (
            <button key={each} type="button" className="quiet" aria-pressed={each === range} onClick={() => setRange(each)}>
              {each}
            </button>
          ))}
        </div>
      </header>
      <ErrorMessage error={history.error ?? costs.error} />
      {history.data && entries.length === 0 ? (
        <EmptyState title="No activity yet">
          <p>
            Sessions appear here automatically. External agents can report their work with{" "}
            <code>holdfast history submit</code> or over MCP.
          </p>
        </EmptyState>
      ) : (
        <>
          <TimelineChart entries={entries} days={days} from={from} to={now} />
          <DayList entries={entries} costs={days} />
        </>
      )}
    </section>
  );
}
