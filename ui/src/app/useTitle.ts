import { useEffect } from "react";

import { escapeInvisible } from "../text/invisible";

const APP_NAME = "Holdfast";

/** Set the title of the browser tab. */
export function useTitle(name: string | null | undefined): void {
  useEffect(() => {
    document.title = name ? `${escapeInvisible(name)} · ${APP_NAME}` : APP_NAME;
  }, [name]);
}
