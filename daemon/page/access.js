// Whether the key may change things, asked before anybody presses a button for it.

import { ApiError, modelPath } from "./api.js";

/** Whether a load of this model, of which only the plan is asked for, is allowed. Changes nothing. */
export async function mayChange(api, model) {
  try {
    await api.call("POST", modelPath(model, "/load"), { dry_run: true });
  } catch (error) {
    if (error instanceof ApiError) return error.status !== 403;
    throw error;
  }
  return true;
}

/** Keeps what is marked as needing the scope `admin` disabled for those who lack it. */
export function guardButtons(store, root = document) {
  const apply = () => {
    for (const node of root.querySelectorAll("[data-needs=admin]")) guard(node, store);
  };
  store.on(["access"], apply);
}

/** One such button, as it should be now. */
export function guard(node, store) {
  const forbidden = store.canChange === false;
  if (node.disabled === forbidden) return;
  node.disabled = forbidden;
  node.title = forbidden ? "This needs a key with the scope admin." : "";
}
