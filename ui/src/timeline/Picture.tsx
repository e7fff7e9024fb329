/** The picture: a lane for each session that runs beside others, its points on it, costs below. */
import { useLayoutEffect, useMemo, useRef, useState } from "react";

import type { CostGroup } from "../api/forms";
import { go } from "../app/router";
import { worded } from "../sessions/standing";
import { dollars, wholeTime } from "../text/format";
import { visible } from "../text/visible";
import { lanesOf, type Point, type Tale } from "./tales";

const LANE = 22;
const AXIS = 24;
const MONEY = 64;
const SHORTEST = 8;
// What happens now is not cut in two.
const EDGE = 16;
const NAMED = 44;
const DAY = 86_400_000;

interface Props {
  readonly tales: readonly Tale[];
  readonly days: readonly CostGroup[];
  readonly from: number;
  readonly to: number;
}

export function Picture({ tales, days, from, to }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const width = useWidth(box);
  const room = Math.max(1, width - EDGE);
  const x = (at: number) => Math.max(0, Math.min(room, ((at - from) / (to - from)) * room));
  const lanes = useMemo(() => lanesOf(tales, ((to - from) / Math.max(1, width)) * 10), [tales, from, to, width]);
  const height = (Math.max(0, ...lanes.values()) + 1) * LANE;
  const most = Math.max(1, ...days.map((each) => each.cost_microcents));
  return (
    <div className="picture-box" ref={box}>
      <svg width={width} height={AXIS + height + MONEY} role="img" aria-label="Sessions over time; the list below says the same in words">
        {ticksOf(from, to).map((tick) => (
          <g key={tick.at} transform={`translate(${x(tick.at)},0)`}>
            <line className="grid" y1={AXIS - 6} y2={AXIS + height + MONEY} />
            {x(tick.at) < room - NAMED && (
              <text x={4} y={13}>
                {tick.name}
              </text>
            )}
          </g>
        ))}
        <g transform={`translate(0,${AXIS})`}>
          {[...lanes].map(([tale, lane]) => (
            <Stroke key={tale.id} tale={tale} y={lane * LANE} x={x} />
          ))}
        </g>
        {days.map((day) => {
          const left = x(Date.parse(day.key));
          const tall = Math.max(day.requests > 0 ? 1.5 : 0, (day.cost_microcents / most) * (MONEY - 14));
          const wide = Math.max(2, x(Date.parse(day.key) + DAY) - left - 2);
          return (
            <rect key={day.key} className="cost" x={left} y={AXIS + height + MONEY - tall} width={wide} height={tall}>
              <title>{`${day.key}: ${dollars(day.cost_microcents)}, ${day.requests} requests`}</title>
            </rect>
          );
        })}
      </svg>
    </div>
  );
}

function Stroke({ tale, y, x }: { tale: Tale; y: number; x: (at: number) => number }) {
  const left = x(tale.from);
  const wide = Math.max(SHORTEST, x(tale.to) - left);
  return (
    <g className={tale.isHosted ? "stroke hosted" : "stroke"} onClick={() => tale.isHosted && go(`/sessions/${tale.id}`)}>
      <rect className={tale.standing.replace(" ", "-")} x={left} y={y + 7} width={wide} height={8} rx={4} />
      <title>{`${visible(tale.title)} — ${worded(tale.standing)}`}</title>
      {tale.points.map((point, at) => (
        <Dot key={at} point={point} tale={tale} x={x(point.at)} y={y + 11} />
      ))}
    </g>
  );
}

function Dot({ point, tale, x, y }: { point: Point; tale: Tale; x: number; y: number }) {
  const open = (event: React.MouseEvent) => {
    if (!tale.isHosted) return;
    event.stopPropagation();
    go(`/sessions/${tale.id}?time=${encodeURIComponent(new Date(point.at).toISOString())}`);
  };
  const told = <title>{`${visible(point.name)} — ${wholeTime(new Date(point.at).toISOString())}`}</title>;
  if (point.kind === "done" || point.kind === "failed") {
    return (
      <rect className={`tick ${point.kind}`} x={x - 0.75} y={y - 4} width={1.5} height={8} onClick={open}>
        {told}
      </rect>
    );
  }
  return (
    <path className={point.kind} d={`M${x} ${y - 6}l6 6l-6 6l-6-6z`} onClick={open}>
      {told}
    </path>
  );
}

function ticksOf(from: number, to: number): { at: number; name: string }[] {
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
    const watch = new ResizeObserver(() => setWidth(box.clientWidth));
    watch.observe(box);
    return () => watch.disconnect();
  }, [ref]);
  return width;
}
