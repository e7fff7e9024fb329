import { QueryClientProvider } from "@tanstack/react-query";
import { createRoot } from "react-dom/client";

import { queryClient } from "./api/queries";
import { App } from "./app/App";

export function renderPage(): void {
  const root = document.getElementById("root");
  if (root === null) throw new Error("The document has no #root element.");
  createRoot(root).render(
    <QueryClientProvider client={queryClient}>
      <App />
    </QueryClientProvider>,
  );
}
