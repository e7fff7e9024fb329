/** Keeps the visible rows in place while rows above them change; at the end, follows new rows. */
import { useCallback, useEffect, useLayoutEffect, useRef, useState, type RefObject } from "react";

import { runWhenIdle } from "../app/idle";

const PRELOAD_PX = 600;
const END_TOLERANCE_PX = 40;

interface ScrollOptions {
  readonly at: number | null;
  readonly isLive: boolean;
  readonly readOlder: () => Promise<void>;
  readonly readNewer: () => Promise<void>;
}

/** A row and its distance from the top of the viewport. */
interface Anchor {
  readonly key: string;
  readonly top: number;
}

export function useScrolling(ref: RefObject<HTMLDivElement | null>, rows: readonly { key: string }[], options: ScrollOptions) {
  const { isLive, readOlder, readNewer } = options;
  const isAtEnd = useRef(options.at === null);
  const anchor = useRef<Anchor | null>(null);
  // Until the first screen is rendered, scroll events come from layout, not from the user.
  const isRendered = useRef(false);
  const hasJumped = useRef(options.at === null);
  const [isFarFromEnd, setFarFromEnd] = useState(false);

  const restorePosition = useCallback(() => {
    const box = ref.current;
    if (box === null) return;
    if (isAtEnd.current) box.scrollTop = box.scrollHeight;
    else if (anchor.current !== null) restoreAnchor(box, anchor.current);
  }, [ref]);

  useLayoutEffect(() => {
    const box = ref.current;
    const mark = hasJumped.current ? null : box?.querySelector<HTMLElement>(".row.marked");
    if (box && mark) {
      hasJumped.current = true;
      anchor.current = { key: mark.dataset["key"] ?? "", top: box.clientHeight / 3 };
    }
    restorePosition();
  }, [ref, rows, restorePosition]);

  useEffect(() => {
    const inner = ref.current?.firstElementChild;
    if (!inner) return;
    // Heights change: rows get their size when visible, code is highlighted, details are expanded.
    const observer = new ResizeObserver(restorePosition);
    observer.observe(inner);
    return () => observer.disconnect();
  }, [ref, restorePosition]);

  const loadNearby = useCallback(
    (box: HTMLElement) => {
      if (box.scrollTop < PRELOAD_PX) void readOlder();
      if (distanceToEnd(box) < PRELOAD_PX && !isLive) void readNewer();
    },
    [isLive, readOlder, readNewer],
  );

  useEffect(() => {
    if (rows.length === 0) return;
    return runWhenIdle(() => {
      isRendered.current = true;
      // Short rows may not fill the screen; without scrolling, more would never be loaded.
      if (ref.current !== null) loadNearby(ref.current);
    });
  }, [ref, rows.length, loadNearby]);

  const handleScroll = () => {
    const box = ref.current;
    if (box === null || !isRendered.current) return;
    isAtEnd.current = distanceToEnd(box) < END_TOLERANCE_PX && isLive;
    anchor.current = findAnchor(box);
    setFarFromEnd(distanceToEnd(box) > box.clientHeight);
    loadNearby(box);
  };
  const scrollToEnd = useCallback(() => {
    isAtEnd.current = true;
    restorePosition();
  }, [restorePosition]);
  return { isFarFromEnd, handleScroll, scrollToEnd };
}

function distanceToEnd(box: HTMLElement): number {
  return box.scrollHeight - box.scrollTop - box.clientHeight;
}

function findAnchor(box: HTMLElement): Anchor | null {
  const rows = box.querySelectorAll<HTMLElement>(".row");
  for (const row of rows) {
    const top = row.offsetTop - box.scrollTop;
    if (top + row.offsetHeight > 0) return { key: row.dataset["key"] ?? "", top };
  }
  return null;
}

function restoreAnchor(box: HTMLElement, { key, top }: Anchor): void {
  const row = box.querySelector<HTMLElement>(`.row[data-key="${CSS.escape(key)}"]`);
  const offset = row === null ? 0 : row.offsetTop - box.scrollTop - top;
  if (Math.abs(offset) >= 1) box.scrollTop += offset;
}
