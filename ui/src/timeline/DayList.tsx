/** The timeline as a list, grouped by day. */
import type { CostGroup } from "../api/types";
import { Link } from "../app/Link";
import { Status } from "../sessions/Status";
import { formatDollars, formatTime } from "../text/format";
import { escapeInvisible } from "../text/invisible";
import type { Point, TimelineEntry } from "./entries";

interface Props {
  readonly entries: readonly TimelineEntry[];
  readonly costs: readonly CostGroup[];
}

export function DayList({ entries, costs }: Props) {
  const spent = new Map(costs.map((each) => [each.key, each.cost_microcents]));
  const days = Map.groupBy(
    entries.toSorted((a, b) => b.from - a.from),
    (entry) => new Date(entry.from).toLocaleDateString("sv"),
  );
  return [...days].map(([day, dayEntries]) => (
    <section key={day} className="day">
      <h2>
        {new Date(`${day}T12:00`).toLocaleDateString(undefined, { weekday: "long", day: "numeric", month: "long" })}{" "}
        <span className="muted">{formatDollars(spent.get(day) ?? 0)}</span>
      </h2>
      <ul>
        {dayEntries.map((entry) => (
          <li key={entry.id}>
            <time dateTime={toIso(entry.from)}>{formatTime(toIso(entry.from))}</time>
            {entry.isHosted ? <Link to={`/sessions/${entry.id}`}>{escapeInvisible(entry.title)}</Link> : <span>{escapeInvisible(entry.title)}</span>}
            {entry.isHosted ? <Status status={entry.status} /> : <span className="muted">reported by an external agent</span>}
            <Markers entry={entry} />
          </li>
        ))}
      </ul>
    </section>
  ));
}

function Markers({ entry }: { entry: TimelineEntry }) {
  const points = entry.points.filter((each) => each.kind === "checkpoint" || each.kind === "outcome");
  const actions = entry.points.length - points.length;
  return (
    <span className="markers">
      {points.map((point, index) => (
        <MarkerLink key={index} entry={entry} point={point} />
      ))}
      {actions > 0 && <span className="muted">{actions === 1 ? "1 action" : `${actions} actions`}</span>}
    </span>
  );
}

function MarkerLink({ entry, point }: { entry: TimelineEntry; point: Point }) {
  const name = `${point.kind === "checkpoint" ? "◆" : "◇"} ${escapeInvisible(point.name)}`;
  if (!entry.isHosted) return <span>{name}</span>;
  return <Link to={`/sessions/${entry.id}?time=${encodeURIComponent(toIso(point.at))}`}>{name}</Link>;
}

function toIso(time: number): string {
  return new Date(time).toISOString();
}
