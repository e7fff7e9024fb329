/** Do something once what is seen is drawn and nothing else is to be done; returns what prevents it. */
export function whenIdle(act: () => void): () => void {
  if (typeof requestIdleCallback !== "function") {
    const timer = setTimeout(act, 100);
    return () => clearTimeout(timer);
  }
  let idle = 0;
  // A browser is idle also while it waits for the moment to draw; and what it draws it measures,
  // which moves things once more.
  let frame = requestAnimationFrame(() => {
    frame = requestAnimationFrame(() => {
      idle = requestIdleCallback(act, { timeout: 1_000 });
    });
  });
  return () => {
    cancelAnimationFrame(frame);
    cancelIdleCallback(idle);
  };
}
