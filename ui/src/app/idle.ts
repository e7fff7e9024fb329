/** Run a callback after the next frames are drawn and the browser is idle; returns a function that cancels it. */
export function runWhenIdle(callback: () => void): () => void {
  if (typeof requestIdleCallback !== "function") {
    const timer = setTimeout(callback, 100);
    return () => clearTimeout(timer);
  }
  let idle = 0;
  // The browser also counts as idle while it waits for the next frame, and the first frame can
  // cause layout changes: wait for two frames.
  let frame = requestAnimationFrame(() => {
    frame = requestAnimationFrame(() => {
      idle = requestIdleCallback(callback, { timeout: 1_000 });
    });
  });
  return () => {
    cancelAnimationFrame(frame);
    cancelIdleCallback(idle);
  };
}
