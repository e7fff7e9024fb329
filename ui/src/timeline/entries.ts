/** Turns the history of sessions into timeline entries. */
import type { Entity, Session } from "../api/types";
import { asFields, asText, type Fields } from "../session/event_data";
import { sessionStatus, type SessionStatus } from "../sessions/session_status";

export interface Point {
  readonly at: number;
  readonly name: string;
  readonly kind: "checkpoint" | "outcome" | "done" | "failed";
}

export interface TimelineEntry {
  readonly id: string;
  readonly title: string;
  readonly isHosted: boolean;
  readonly status: SessionStatus;
  readonly from: number;
  readonly to: number;
  readonly points: readonly Point[];
}

const MAX_ACTIONS = 200;

export function sessionIdOf(entity: Entity): string {
  return asText(asFields(entity.snapshot)?.["session_id"]);
}

export function toTimelineEntry(entity: Entity, session: Session | undefined, now: number, isWaiting = false): TimelineEntry | null {
  const snapshot = asFields(entity.snapshot) ?? {};
  const from = Date.parse(asText(snapshot["started_at"]));
  if (Number.isNaN(from)) return null;
  const points = toPoints(snapshot, from);
  const ended = Date.parse(asText(snapshot["ended_at"]) || (session?.updated_at ?? ""));
  const isRunning = session?.status === "running";
  const last = Math.max(from, ...points.map((each) => each.at));
  const id = sessionIdOf(entity);
  return {
    id,
    title: session?.title ?? id,
    isHosted: entity.hosted,
    status: session ? sessionStatus(session, isWaiting) : "closed",
    from,
    to: isRunning ? now : Number.isNaN(ended) ? last : Math.max(ended, last),
    points,
  };
}

function toPoints(snapshot: Fields, from: number): Point[] {
  const ended = Date.parse(asText(snapshot["ended_at"]));
  const readList = (name: string) => {
    const value: unknown = snapshot[name];
    return Array.isArray(value) ? value.map(asFields).filter((each) => each !== null) : [];
  };
  const readTime = (fields: Fields, fallback: number) => {
    const at = Date.parse(asText(fields["timestamp"]));
    return Number.isNaN(at) ? fallback : at;
  };
  const end = Number.isNaN(ended) ? from : ended;
  return [
    ...readList("actions")
      .slice(-MAX_ACTIONS)
      .map((each): Point => {
        const isDone = asText(each["result"]) === "success";
        return { at: readTime(each, from), name: asText(each["type"]), kind: isDone ? "done" : "failed" };
      }),
    ...readList("checkpoints").map((each): Point => ({ at: readTime(each, from), name: asText(each["name"]), kind: "checkpoint" })),
    ...readList("outcomes").map((each): Point => ({ at: end, name: [asText(each["type"]), asText(each["id"])].join(" ").trim(), kind: "outcome" })),
  ];
}

/** Assign every entry the first lane in which it overlaps no other entry. */
export function assignLanes(entries: readonly TimelineEntry[], minGap: number): Map<TimelineEntry, number> {
  const ends: number[] = [];
  const lanes = new Map<TimelineEntry, number>();
  for (const entry of entries.toSorted((a, b) => a.from - b.from)) {
    const free = ends.findIndex((end) => end + minGap < entry.from);
    const lane = free < 0 ? ends.length : free;
    ends[lane] = Math.max(entry.to, entry.from + minGap);
    lanes.set(entry, lane);
  }
  return lanes;
}
