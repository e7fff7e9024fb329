import { expect, test } from "vitest";

import type { Entity } from "../api/forms";
import { lanesOf, taleOf, type Tale } from "./tales";

test("a session told elsewhere is a stroke with its points", () => {
  const snapshot = {
    session_id: "abc123",
    started_at: "2026-01-01T10:00:00Z",
    ended_at: "2026-01-01T11:00:00Z",
    actions: [{ type: "build", result: "failure", timestamp: "2026-01-01T10:10:00Z" }],
    checkpoints: [{ name: "green", timestamp: "2026-01-01T10:30:00Z" }],
    outcomes: [{ type: "released", id: "R-1" }],
  };
  const tale = taleOf({ snapshot, hosted: false } as unknown as Entity, undefined, 0);
  expect(tale).toMatchObject({ id: "abc123", title: "abc123", isHosted: false, from: Date.UTC(2026, 0, 1, 10), to: Date.UTC(2026, 0, 1, 11) });
  expect(tale?.points.map((each) => [each.kind, each.name])).toEqual([
    ["failed", "build"],
    ["checkpoint", "green"],
    ["outcome", "released R-1"],
  ]);
});

test("strokes that meet lie in lanes of their own", () => {
  const tale = (from: number, to: number) => ({ from, to }) as unknown as Tale;
  const tales = [tale(0, 10), tale(5, 8), tale(20, 30), tale(9, 12)];
  const lanes = lanesOf(tales, 2);
  expect(tales.map((each) => lanes.get(each))).toEqual([0, 1, 0, 2]);
});
