import { useLayoutEffect, useRef, type Ref } from "react";

interface Props {
  readonly label: string;
  readonly value: string;
  readonly onChange: (text: string) => void;
  readonly onSend: () => void;
  readonly placeholder?: string;
  readonly rows?: number;
  readonly ref?: Ref<HTMLTextAreaElement>;
}

const TALLEST = 320;

/** A field that grows with what is written; Enter sends, Shift+Enter begins a line. */
export function TextField({ label, value, onChange, onSend, placeholder, rows = 1, ref }: Props) {
  const own = useRef<HTMLTextAreaElement>(null);
  useLayoutEffect(() => {
    const field = own.current;
    if (field === null) return;
    field.style.height = "auto";
    // What is not shown has no height to take.
    if (field.scrollHeight === 0) return;
    field.style.height = `${Math.min(TALLEST, field.scrollHeight)}px`;
  }, [value]);
  return (
    <textarea
      ref={(element) => {
        own.current = element;
        if (typeof ref === "function") ref(element);
        else if (ref) ref.current = element;
      }}
      aria-label={label}
      placeholder={placeholder}
      rows={rows}
      value={value}
      onChange={(event) => onChange(event.target.value)}
      onKeyDown={(event) => {
        // While a character is being composed, Enter belongs to the composition.
        if (event.key !== "Enter" || event.shiftKey || event.nativeEvent.isComposing) return;
        event.preventDefault();
        onSend();
      }}
    />
  );
}
