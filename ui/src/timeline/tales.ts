/** What is known of sessions, as strokes and points on a line of time. */
import type { Entity, Session } from "../api/forms";
import { asFields, asText, type Fields } from "../session/event_data";
import { standingOf, type Standing } from "../sessions/standing";

export interface Point {
  readonly at: number;
  readonly name: string;
  readonly kind: "checkpoint" | "outcome" | "done" | "failed";
}

export interface Tale {
  readonly id: string;
  readonly title: string;
  readonly isHosted: boolean;
  readonly standing: Standing;
  readonly from: number;
  readonly to: number;
  readonly points: readonly Point[];
}

const ACTIONS_MOST = 200;

export function sessionIdOf(entity: Entity): string {
  return asText(asFields(entity.snapshot)?.["session_id"]);
}

export function taleOf(entity: Entity, session: Session | undefined, now: number, isAsking = false): Tale | null {
  const snapshot = asFields(entity.snapshot) ?? {};
  const from = Date.parse(asText(snapshot["started_at"]));
  if (Number.isNaN(from)) return null;
  const points = pointsOf(snapshot, from);
  const ended = Date.parse(asText(snapshot["ended_at"]) || (session?.updated_at ?? ""));
  const isRunning = session?.status === "running";
  const last = Math.max(from, ...points.map((each) => each.at));
  const id = sessionIdOf(entity);
  return {
    id,
    title: session?.title ?? id,
    isHosted: entity.hosted,
    standing: session ? standingOf(session, isAsking) : "closed",
    from,
    to: isRunning ? now : Number.isNaN(ended) ? last : Math.max(ended, last),
    points,
  };
}

function pointsOf(snapshot: Fields, from: number): Point[] {
  const ended = Date.parse(asText(snapshot["ended_at"]));
  const listed = (name: string) => {
    const found: unknown = snapshot[name];
    return Array.isArray(found) ? found.map(asFields).filter((each) => each !== null) : [];
  };
  const time = (fields: Fields, otherwise: number) => {
    const at = Date.parse(asText(fields["timestamp"]));
    return Number.isNaN(at) ? otherwise : at;
  };
  const end = Number.isNaN(ended) ? from : ended;
  return [
    ...listed("actions")
      .slice(-ACTIONS_MOST)
      .map((each): Point => {
        const isDone = asText(each["result"]) === "success";
        return { at: time(each, from), name: asText(each["type"]), kind: isDone ? "done" : "failed" };
      }),
    ...listed("checkpoints").map((each): Point => ({ at: time(each, from), name: asText(each["name"]), kind: "checkpoint" })),
    ...listed("outcomes").map((each): Point => ({ at: end, name: [asText(each["type"]), asText(each["id"])].join(" ").trim(), kind: "outcome" })),
  ];
}

/** Give every tale a lane, the first in which nothing else is at that time. */
export function lanesOf(tales: readonly Tale[], room: number): Map<Tale, number> {
  const ends: number[] = [];
  const lanes = new Map<Tale, number>();
  for (const tale of tales.toSorted((a, b) => a.from - b.from)) {
    const free = ends.findIndex((end) => end + room < tale.from);
    const lane = free < 0 ? ends.length : free;
    ends[lane] = Math.max(tale.to, tale.from + room);
    lanes.set(tale, lane);
  }
  return lanes;
}
