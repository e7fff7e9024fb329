/** The timeline as a chart: a bar for each session, in lanes, and the costs of each day below. */
import { useLayoutEffect, useMemo, useRef, useState } from "react";

import type { CostGroup } from "../api/types";
import { navigate } from "../app/router";
import { statusLabel } from "../sessions/session_status";
import { formatDateTime, formatDollars } from "../text/format";
import { escapeInvisible } from "../text/invisible";
import { assignLanes, type Point, type TimelineEntry } from "./entries";

const LANE_HEIGHT = 22;
const AXIS_HEIGHT = 24;
const COST_HEIGHT = 64;
const MIN_BAR_WIDTH = 8;
// Room for markers at the current time, which would be clipped otherwise.
const RIGHT_MARGIN = 16;
const LABEL_WIDTH = 44;
const DAY = 86_400_000;

interface Props {
  readonly entries: readonly TimelineEntry[];
  readonly days: readonly CostGroup[];
  readonly from: number;
  readonly to: number;
}

export function TimelineChart({ entries, days, from, to }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const width = useWidth(box);
  const plotWidth = Math.max(1, width - RIGHT_MARGIN);
  const x = (at: number) => Math.max(0, Math.min(plotWidth, ((at - from) / (to - from)) * plotWidth));
  const lanes = useMemo(() => assignLanes(entries, ((to - from) / Math.max(1, width)) * 10), [entries, from, to, width]);
  const height = (Math.max(0, ...lanes.values()) + 1) * LANE_HEIGHT;
  const maxCost = Math.max(1, ...days.map((each) => each.cost_microcents));
  return (
    <div className="chart" ref={box}>
      <svg width={width} height={AXIS_HEIGHT + height + COST_HEIGHT} role="img" aria-label="Sessions over time; the list below has the same content">
        {timeTicks(from, to).map((tick) => (
          <g key={tick.at} transform={`translate(${x(tick.at)},0)`}>
            <line className="grid" y1={AXIS_HEIGHT - 6} y2={AXIS_HEIGHT + height + COST_HEIGHT} />
            {x(tick.at) < plotWidth - LABEL_WIDTH && (
              <text x={4} y={13}>
                {tick.name}
              </text>
            )}
          </g>
        ))}
        <g transform={`translate(0,${AXIS_HEIGHT})`}>
          {[...lanes].map(([entry, lane]) => (
            <SessionBar key={entry.id} entry={entry} y={lane * LANE_HEIGHT} x={x} />
          ))}
        </g>
        {days.map((day) => {
          const left = x(Date.parse(day.key));
          const barHeight = Math.max(day.requests > 0 ? 1.5 : 0, (day.cost_microcents / maxCost) * (COST_HEIGHT - 14));
          const barWidth = Math.max(2, x(Date.parse(day.key) + DAY) - left - 2);
          return (
            <rect key={day.key} className="cost" x={left} y={AXIS_HEIGHT + height + COST_HEIGHT - barHeight} width={barWidth} height={barHeight}>
              <title>{`${day.key}: ${formatDollars(day.cost_microcents)}, ${day.requests} requests`}</title>
            </rect>
          );
        })}
      </svg>
    </div>
  );
}

function SessionBar({ entry, y, x }: { entry: TimelineEntry; y: number; x: (at: number) => number }) {
  const left = x(entry.from);
  const barWidth = Math.max(MIN_BAR_WIDTH, x(entry.to) - left);
  return (
    <g className={entry.isHosted ? "bar hosted" : "bar"} onClick={() => entry.isHosted && navigate(`/sessions/${entry.id}`)}>
      <rect className={entry.status} x={left} y={y + 7} width={barWidth} height={8} rx={4} />
      <title>{`${escapeInvisible(entry.title)} — ${statusLabel(entry.status)}`}</title>
      {entry.points.map((point, index) => (
        <Marker key={index} point={point} entry={entry} x={x(point.at)} y={y + 11} />
      ))}
    </g>
  );
}

function Marker({ point, entry, x, y }: { point: Point; entry: TimelineEntry; x: number; y: number }) {
  const open = (event: React.MouseEvent) => {
    if (!entry.isHosted) return;
    event.stopPropagation();
    navigate(`/sessions/${entry.id}?time=${encodeURIComponent(new Date(point.at).toISOString())}`);
  };
  const title = <title>{`${escapeInvisible(point.name)} — ${formatDateTime(new Date(point.at).toISOString())}`}</title>;
  if (point.kind === "done" || point.kind === "failed") {
    return (
      <rect className={`tick ${point.kind}`} x={x - 0.75} y={y - 4} width={1.5} height={8} onClick={open}>
        {title}
      </rect>
    );
  }
  return (
    <path className={point.kind} d={`M${x} ${y - 6}l6 6l-6 6l-6-6z`} onClick={open}>
      {title}
    </path>
  );
}

function timeTicks(from: number, to: number): { at: number; name: string }[] {
  const days = (to - from) / DAY;
  const step = days <= 1 ? DAY / 6 : days <= 7 ? DAY : days <= 30 ? 5 * DAY : 15 * DAY;
  const options: Intl.DateTimeFormatOptions =
    days <= 1 ? { hour: "2-digit", minute: "2-digit", hourCycle: "h23" } : { day: "numeric", month: "short" };
  const first = new Date(from);
  first.setHours(0, 0, 0, 0);
  const ticks = [];
  for (let at = first.getTime(); at < to; at += step) {
    if (at > from) ticks.push({ at, name: new Date(at).toLocaleString(undefined, options) });
  }
  return ticks;
}

function useWidth(ref: React.RefObject<HTMLDivElement | null>): number {
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    const box = ref.current;
    if (box === null) return;
    const observer = new ResizeObserver(() => setWidth(box.clientWidth));
    observer.observe(box);
    return () => observer.disconnect();
  }, [ref]);
  return width;
}
