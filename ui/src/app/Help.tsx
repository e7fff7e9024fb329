import { Dialog } from "./Dialog";
import { LISTED } from "./keys";

export function Help({ onClose }: { onClose: () => void }) {
  return (
    <Dialog title="Keys" onClose={onClose}>
      <dl className="keys">
        {LISTED.map(([keys, meaning]) => (
          <div key={keys}>
            <dt>
              {keys.split("  ").map((each) => (
                <kbd key={each}>{each}</kbd>
              ))}
            </dt>
            <dd>{meaning}</dd>
          </div>
        ))}
      </dl>
    </Dialog>
  );
}
