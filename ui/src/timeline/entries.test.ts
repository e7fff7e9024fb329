import { expect, test } from "vitest";

import type { Entity } from "../api/types";
import { assignLanes, toTimelineEntry, type TimelineEntry } from "./entries";

test("a session of an external agent becomes an entry with its points", () => {
  const snapshot = {
    session_id: "abc123",
    started_at: "2026-01-01T10:00:00Z",
    ended_at: "2026-01-01T11:00:00Z",
    actions: [{ type: "build", result: "failure", timestamp: "2026-01-01T10:10:00Z" }],
    checkpoints: [{ name: "green", timestamp: "2026-01-01T10:30:00Z" }],
    outcomes: [{ type: "released", id: "R-1" }],
  };
  const entry = toTimelineEntry({ snapshot, hosted: false } as unknown as Entity, undefined, 0);
  expect(entry).toMatchObject({ id: "abc123", title: "abc123", isHosted: false, from: Date.UTC(2026, 0, 1, 10), to: Date.UTC(2026, 0, 1, 11) });
  expect(entry?.points.map((each) => [each.kind, each.name])).toEqual([
    ["failed", "build"],
    ["checkpoint", "green"],
    ["outcome", "released R-1"],
  ]);
});

test("overlapping entries are in different lanes", () => {
  const entry = (from: number, to: number) => ({ from, to }) as unknown as TimelineEntry;
  const entries = [entry(0, 10), entry(5, 8), entry(20, 30), entry(9, 12)];
  const lanes = assignLanes(entries, 2);
  expect(entries.map((each) => lanes.get(each))).toEqual([0, 1, 0, 2]);
});
