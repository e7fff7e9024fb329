import { useEffect, useState } from "react";

/** Return the current time, updated every 20 seconds, which is enough for ages such as "3 min". */
export function useNow(everyMs = 20_000): number {
  const [now, setNow] = useState(() => Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), everyMs);
    return () => clearInterval(timer);
  }, [everyMs]);
  return now;
}
