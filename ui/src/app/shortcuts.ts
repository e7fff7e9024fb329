/** Keyboard shortcuts, which are inactive in text fields. */
import { useEffect } from "react";

export type Shortcuts = Readonly<Record<string, () => void>>;

export const SHORTCUTS: readonly (readonly [string, string])[] = [
  ["/", "search messages, titles and tools"],
  ["n", "new session"],
  ["j  k", "next, previous session"],
  ["g s  g a  g t", "sessions, agents, timeline"],
  ["c", "write a message"],
  ["Enter", "send; Shift+Enter starts a new line"],
  ["Esc", "stop the running turn; close what is open; leave the field"],
  ["?", "this list"],
];

const PREFIX = "g";
const PREFIX_MS = 900;

let isSuspended = false;

/** Ignore shortcuts until the next text field is there: what is typed meanwhile is meant for it. */
export function suspendShortcuts(): void {
  isSuspended = true;
}

export function resumeShortcuts(): void {
  isSuspended = false;
}

/** Leave the focused field, so that letters are shortcuts again. */
export function blurField(): void {
  if (isEditable(document.activeElement)) (document.activeElement as HTMLElement).blur();
}

/** Register shortcuts; a sequence of two keys is written with a space between them. */
export function useShortcuts(shortcuts: Shortcuts): void {
  useEffect(() => {
    let prefixTime = -Infinity;
    const handleKeyDown = (event: KeyboardEvent) => {
      if (event.metaKey || event.ctrlKey || event.altKey || event.defaultPrevented || event.isComposing || isSuspended) return;
      // An open dialog disables the shortcuts of the page below it.
      if (document.querySelector("dialog[open]") !== null) return;
      if (isEditable(event.target) && event.key !== "Escape") return;
      const name = event.timeStamp - prefixTime < PREFIX_MS ? `${PREFIX} ${event.key}` : event.key;
      prefixTime = event.key === PREFIX ? event.timeStamp : -Infinity;
      const action = shortcuts[name];
      if (action === undefined) return;
      event.preventDefault();
      action();
    };
    addEventListener("keydown", handleKeyDown);
    return () => removeEventListener("keydown", handleKeyDown);
  }, [shortcuts]);
}

function isEditable(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName));
}
