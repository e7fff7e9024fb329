import { escapeInvisible } from "../text/invisible";
import type { PlanStep } from "./event_data";

const MARKS: Readonly<Record<string, string>> = { completed: "✓", in_progress: "▸", pending: "·" };

export function PlanView({ steps }: { steps: readonly PlanStep[] }) {
  const done = steps.filter((step) => step.status === "completed").length;
  const now = steps.find((step) => step.status === "in_progress");
  return (
    <details className="plan">
      <summary>
        Plan <span className="muted">{done} of {steps.length}</span> {now && <span>{escapeInvisible(now.content)}</span>}
      </summary>
      <ol>
        {steps.map((step, index) => (
          <li key={index} className={step.status}>
            <span aria-label={step.status.replace("_", " ")}>{MARKS[step.status] ?? "·"}</span> {escapeInvisible(step.content)}
          </li>
        ))}
      </ol>
    </details>
  );
}
