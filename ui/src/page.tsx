import { QueryClientProvider } from "@tanstack/react-query";
import { createRoot } from "react-dom/client";

import { queries } from "./api/queries";
import { App } from "./app/App";

export function show(): void {
  const root = document.getElementById("root");
  if (root === null) throw new Error("The document has no place for the page.");
  createRoot(root).render(
    <QueryClientProvider client={queries}>
      <App />
    </QueryClientProvider>,
  );
}
