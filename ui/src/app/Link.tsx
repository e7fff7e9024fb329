import type { MouseEvent, ReactNode } from "react";

import { go } from "./router";

interface Props {
  readonly to: string;
  readonly className?: string;
  readonly isCurrent?: boolean;
  readonly label?: string;
  readonly children: ReactNode;
}

/** A link inside the page; opened in another window it is an address like any other. */
export function Link({ to, className, isCurrent = false, label, children }: Props) {
  const follow = (event: MouseEvent) => {
    if (event.metaKey || event.ctrlKey || event.shiftKey || event.button !== 0) return;
    event.preventDefault();
    go(to);
  };
  return (
    <a href={to} className={className} onClick={follow} aria-current={isCurrent ? "page" : undefined} aria-label={label}>
      {children}
    </a>
  );
}
