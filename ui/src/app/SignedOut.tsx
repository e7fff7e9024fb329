/** Shown to a browser that the server does not know. */
import { Mark } from "./Mark";

export function SignedOut() {
  return (
    <main className="signed-out">
      <Mark />
      <h1>Holdfast</h1>
      <p>This browser is not signed in.</p>
      <p>
        Where the server runs, <code>holdfast token link</code> prints a link; open it here. It works once, within ten
        minutes, and signs this browser in for thirty days.
      </p>
      <button type="button" className="primary" onClick={() => location.reload()}>
        I have opened it
      </button>
    </main>
  );
}
