import { useEffect } from "react";

import { visible } from "../text/visible";

const HOUSE = "Holdfast";

/** Name the window after what it shows, so that one of many tabs is found again. */
export function useTitle(name: string | null | undefined): void {
  useEffect(() => {
    document.title = name ? `${visible(name)} · ${HOUSE}` : HOUSE;
  }, [name]);
}
