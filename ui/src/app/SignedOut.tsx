/** Shown to a browser that is not signed in. */
import { Logo } from "./Logo";

export function SignedOut() {
  return (
    <main className="signed-out">
      <Logo />
      <h1>Holdfast</h1>
      <p>This browser is not signed in.</p>
      <p>
        Run <code>holdfast token link</code> on the server and open the link that it prints in this browser. The link
        works once, within ten minutes, and signs this browser in for thirty days.
      </p>
      <button type="button" className="primary" onClick={() => location.reload()}>
        Reload
      </button>
    </main>
  );
}
