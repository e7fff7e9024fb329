/** The logo of Holdfast. */
export function Logo() {
  return (
    <svg className="logo" viewBox="0 0 32 32" aria-hidden="true">
      <path d="M10 7v18M22 7v18M10 16h12M6.500 25h7M18.500 25h7" fill="none" strokeLinecap="round" />
    </svg>
  );
}
