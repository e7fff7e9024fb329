import { useEffect, useRef, type ReactNode } from "react";

/** A menu that closes on a choice, on Esc and on a click outside. */
export function Menu({ label, children }: { label: string; children: ReactNode }) {
  const ref = useRef<HTMLDetailsElement>(null);
  useEffect(() => {
    const closeOutside = (event: Event) => {
      if (event.target instanceof Node && !ref.current?.contains(event.target)) ref.current?.removeAttribute("open");
    };
    addEventListener("pointerdown", closeOutside);
    return () => removeEventListener("pointerdown", closeOutside);
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
      <summary aria-label={`${label} actions`}>⋯</summary>
      <div className="menu-items" onClick={close}>
        {children}
      </div>
    </details>
  );
}
