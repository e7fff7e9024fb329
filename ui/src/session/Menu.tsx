import { useEffect, useRef, type ReactNode } from "react";

/** A menu that closes when somebody chooses, presses Esc or looks elsewhere. */
export function Menu({ label, children }: { label: string; children: ReactNode }) {
  const ref = useRef<HTMLDetailsElement>(null);
  useEffect(() => {
    const elsewhere = (event: Event) => {
      if (event.target instanceof Node && !ref.current?.contains(event.target)) ref.current?.removeAttribute("open");
    };
    addEventListener("pointerdown", elsewhere);
    return () => removeEventListener("pointerdown", elsewhere);
  }, []);
  const close = () => ref.current?.removeAttribute("open");
  return (
    <details
      className="menu"
      ref={ref}
      onKeyDown={(event) => {
        if (event.key !== "Escape" || !ref.current?.open) return;
        event.preventDefault();
        event.stopPropagation();
        close();
      }}
    >
      <summary aria-label={`${label}: what can be done`}>⋯</summary>
      <div className="menu-items" onClick={close}>
        {children}
      </div>
    </details>
  );
}
