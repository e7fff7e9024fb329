/** Keeps what somebody reads where it is, whatever comes or goes above it; at the end, stays there. */
import { useCallback, useEffect, useLayoutEffect, useRef, useState, type RefObject } from "react";

import { whenIdle } from "../app/idle";

const NEAR = 600;
const STUCK = 40;

interface Ends {
  readonly at: number | null;
  readonly isLive: boolean;
  readonly readOlder: () => Promise<void>;
  readonly readNewer: () => Promise<void>;
}

/** A row, and how far below the upper edge it is seen. */
interface Anchor {
  readonly key: string;
  readonly top: number;
}

export function useScrolling(ref: RefObject<HTMLDivElement | null>, rows: readonly { key: string }[], ends: Ends) {
  const { isLive, readOlder, readNewer } = ends;
  const isStuck = useRef(ends.at === null);
  const anchor = useRef<Anchor | null>(null);
  // Until the first screen is seen nobody has scrolled: what moves is rows that get their heights.
  const isDrawn = useRef(false);
  const hasJumped = useRef(ends.at === null);
  const [isAway, setAway] = useState(false);

  const settle = useCallback(() => {
    const box = ref.current;
    if (box === null) return;
    if (isStuck.current) box.scrollTop = box.scrollHeight;
    else if (anchor.current !== null) hold(box, anchor.current);
  }, [ref]);

  useLayoutEffect(() => {
    const box = ref.current;
    const mark = hasJumped.current ? null : box?.querySelector<HTMLElement>(".row.marked");
    if (box && mark) {
      hasJumped.current = true;
      anchor.current = { key: mark.dataset["key"] ?? "", top: box.clientHeight / 3 };
    }
    settle();
  }, [ref, rows, settle]);

  useEffect(() => {
    const inner = ref.current?.firstElementChild;
    if (!inner) return;
    // Rows are measured when they are seen, code gets colours, folds open.
    const watch = new ResizeObserver(settle);
    watch.observe(inner);
    return () => watch.disconnect();
  }, [ref, settle]);

  const readNear = useCallback(
    (box: HTMLElement) => {
      if (box.scrollTop < NEAR) void readOlder();
      if (below(box) < NEAR && !isLive) void readNewer();
    },
    [isLive, readOlder, readNewer],
  );

  useEffect(() => {
    if (rows.length === 0) return;
    return whenIdle(() => {
      isDrawn.current = true;
      // Short rows may not fill the screen, and what cannot be scrolled would never be asked for.
      if (ref.current !== null) readNear(ref.current);
    });
  }, [ref, rows.length, readNear]);

  const scrolled = () => {
    const box = ref.current;
    if (box === null || !isDrawn.current) return;
    isStuck.current = below(box) < STUCK && isLive;
    anchor.current = anchorOf(box);
    setAway(below(box) > box.clientHeight);
    readNear(box);
  };
  const stick = useCallback(() => {
    isStuck.current = true;
    settle();
  }, [settle]);
  return { isAway, scrolled, stick };
}

function below(box: HTMLElement): number {
  return box.scrollHeight - box.scrollTop - box.clientHeight;
}

function anchorOf(box: HTMLElement): Anchor | null {
  const rows = box.querySelectorAll<HTMLElement>(".row");
  for (const row of rows) {
    const top = row.offsetTop - box.scrollTop;
    if (top + row.offsetHeight > 0) return { key: row.dataset["key"] ?? "", top };
  }
  return null;
}

function hold(box: HTMLElement, { key, top }: Anchor): void {
  const row = box.querySelector<HTMLElement>(`.row[data-key="${CSS.escape(key)}"]`);
  const moved = row === null ? 0 : row.offsetTop - box.scrollTop - top;
  if (Math.abs(moved) >= 1) box.scrollTop += moved;
}
