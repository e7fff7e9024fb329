/** Keys that work everywhere but where somebody writes. */
import { useEffect } from "react";

export type Keys = Readonly<Record<string, () => void>>;

export const LISTED: readonly (readonly [string, string])[] = [
  ["/", "search messages, titles and tools"],
  ["n", "new session"],
  ["j  k", "next, previous session"],
  ["g s  g a  g t", "sessions, agents, what happened"],
  ["c", "write a message"],
  ["Enter", "send; Shift+Enter begins a line"],
  ["Esc", "stop the running turn; close what is open; leave a field"],
  ["?", "this list"],
];

const PREFIX = "g";
const PREFIX_MS = 900;

let isHeld = false;

/** From sending until there is a field again, what is typed is meant for that field. */
export function holdKeys(): void {
  isHeld = true;
}

export function releaseKeys(): void {
  isHeld = false;
}

/** Stop writing, so that letters are keys again. */
export function leaveField(): void {
  if (isWriting(document.activeElement)) (document.activeElement as HTMLElement).blur();
}

/** Listen for keys; two that belong together are written with a space between them. */
export function useKeys(keys: Keys): void {
  useEffect(() => {
    let prefixed = -Infinity;
    const pressed = (event: KeyboardEvent) => {
      if (event.metaKey || event.ctrlKey || event.altKey || event.defaultPrevented || event.isComposing || isHeld) return;
      // What lies below a dialog is not what somebody means.
      if (document.querySelector("dialog[open]") !== null) return;
      if (isWriting(event.target) && event.key !== "Escape") return;
      const name = event.timeStamp - prefixed < PREFIX_MS ? `${PREFIX} ${event.key}` : event.key;
      prefixed = event.key === PREFIX ? event.timeStamp : -Infinity;
      const act = keys[name];
      if (act === undefined) return;
      event.preventDefault();
      act();
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, [keys]);
}

function isWriting(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName));
}
