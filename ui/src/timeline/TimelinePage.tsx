/** What happened: sessions on a line of time, and what each day cost. */
import { useQuery } from "@tanstack/react-query";
import { useMemo, useState } from "react";

import { server, told } from "../api/client";
import { sessionsQuery, waitingQuery } from "../api/queries";
import { Link } from "../app/Link";
import { Empty, Trouble } from "../app/Notice";
import { useNow } from "../app/useNow";
import { useTitle } from "../app/useTitle";
import { dollars } from "../text/format";
import { Days } from "./Days";
import { Picture } from "./Picture";
import { sessionIdOf, taleOf } from "./tales";

const HOUR = 3_600_000;
const SPANS = { "24 hours": 24 * HOUR, "7 days": 7 * 24 * HOUR, "30 days": 30 * 24 * HOUR, "90 days": 90 * 24 * HOUR } as const;
type Span = keyof typeof SPANS;
const MOST = 200;

export default function TimelinePage() {
  const [span, setSpan] = useState<Span>("7 days");
  const now = useNow();
  const history = useQuery({
    queryKey: ["history"],
    queryFn: () => told(server.GET("/v1/history", { params: { query: { limit: 100 } } })),
    refetchInterval: 10_000,
  });
  const sessions = useQuery(sessionsQuery({ standing: "", agent: "", words: "" }, MOST));
  const waiting = useQuery(waitingQuery);
  const costs = useQuery({
    queryKey: ["costs", "day"],
    queryFn: () => told(server.GET("/v1/costs", { params: { query: { group_by: "day" } } })),
    refetchInterval: 30_000,
  });
  const from = now - SPANS[span];
  const tales = useMemo(() => {
    const known = new Map(sessions.data?.data.map((each) => [each.id, each]));
    const asking = new Set(waiting.data?.data.map((each) => each.session_id));
    return (history.data?.data ?? [])
      .flatMap((each) => taleOf(each, known.get(sessionIdOf(each)), now, asking.has(sessionIdOf(each))) ?? [])
      .filter((each) => each.to >= from);
  }, [history.data, sessions.data, waiting.data, now, from]);
  const days = (costs.data?.data ?? []).filter((each) => Date.parse(each.key) >= from - 24 * HOUR);
  const total = days.reduce((sum, each) => sum + each.cost_microcents, 0);
  useTitle("What happened");
  return (
    <section className="timeline" aria-labelledby="timeline-title">
      <Link to="/sessions" className="back">
        ‹ Sessions
      </Link>
      <header>
        <h1 id="timeline-title">What happened</h1>
        <span className="faint">
          {tales.length} sessions, {dollars(total)}
        </span>
        <span className="spread" />
        <div className="spans" role="group" aria-label="How far back">
          {(Object.keys(SPANS) as Span[]).map((each) => (
            <button key={each} type="button" className="quiet" aria-pressed={each === span} onClick={() => setSpan(each)}>
              {each}
            </button>
          ))}
        </div>
      </header>
      <Trouble error={history.error ?? costs.error} />
      {history.data && tales.length === 0 ? (
        <Empty title="Nothing happened yet">
          <p>
            Sessions appear here by themselves. Agents that run elsewhere can tell what they did, with{" "}
            <code>holdfast history submit</code> or over MCP.
          </p>
        </Empty>
      ) : (
        <>
          <Picture tales={tales} days={days} from={from} to={now} />
          <Days tales={tales} costs={days} />
        </>
      )}
    </section>
  );
}
