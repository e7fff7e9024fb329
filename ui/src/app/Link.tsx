import type { MouseEvent, ReactNode } from "react";

import { navigate } from "./router";

interface Props {
  readonly to: string;
  readonly className?: string;
  readonly isCurrent?: boolean;
  readonly label?: string;
  readonly children: ReactNode;
}

/** A client-side link; a click with a modifier key is left to the browser. */
export function Link({ to, className, isCurrent = false, label, children }: Props) {
  const handleClick = (event: MouseEvent) => {
    if (event.metaKey || event.ctrlKey || event.shiftKey || event.button !== 0) return;
    event.preventDefault();
    navigate(to);
  };
  return (
    <a href={to} className={className} onClick={handleClick} aria-current={isCurrent ? "page" : undefined} aria-label={label}>
      {children}
    </a>
  );
}
