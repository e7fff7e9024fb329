/** The same in words, day by day. */
import type { CostGroup } from "../api/forms";
import { Link } from "../app/Link";
import { Status } from "../sessions/Status";
import { clock, dollars } from "../text/format";
import { visible } from "../text/visible";
import type { Point, Tale } from "./tales";

interface Props {
  readonly tales: readonly Tale[];
  readonly costs: readonly CostGroup[];
}

export function Days({ tales, costs }: Props) {
  const spent = new Map(costs.map((each) => [each.key, each.cost_microcents]));
  const days = Map.groupBy(
    tales.toSorted((a, b) => b.from - a.from),
    (tale) => new Date(tale.from).toLocaleDateString("sv"),
  );
  return [...days].map(([day, told]) => (
    <section key={day} className="day">
      <h2>
        {new Date(`${day}T12:00`).toLocaleDateString(undefined, { weekday: "long", day: "numeric", month: "long" })}{" "}
        <span className="faint">{dollars(spent.get(day) ?? 0)}</span>
      </h2>
      <ul>
        {told.map((tale) => (
          <li key={tale.id}>
            <time dateTime={iso(tale.from)}>{clock(iso(tale.from))}</time>
            {tale.isHosted ? <Link to={`/sessions/${tale.id}`}>{visible(tale.title)}</Link> : <span>{visible(tale.title)}</span>}
            {tale.isHosted ? <Status standing={tale.standing} /> : <span className="faint">told by an agent elsewhere</span>}
            <Moments tale={tale} />
          </li>
        ))}
      </ul>
    </section>
  ));
}

function Moments({ tale }: { tale: Tale }) {
  const points = tale.points.filter((each) => each.kind === "checkpoint" || each.kind === "outcome");
  const actions = tale.points.length - points.length;
  return (
    <span className="moments">
      {points.map((point, at) => (
        <MomentName key={at} tale={tale} point={point} />
      ))}
      {actions > 0 && <span className="faint">{actions === 1 ? "1 action" : `${actions} actions`}</span>}
    </span>
  );
}

function MomentName({ tale, point }: { tale: Tale; point: Point }) {
  const name = `${point.kind === "checkpoint" ? "◆" : "◇"} ${visible(point.name)}`;
  if (!tale.isHosted) return <span>{name}</span>;
  return <Link to={`/sessions/${tale.id}?time=${encodeURIComponent(iso(point.at))}`}>{name}</Link>;
}

function iso(at: number): string {
  return new Date(at).toISOString();
}
