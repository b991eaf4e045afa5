// Dialogs and passing messages.

import { byId, el } from "./dom.js";

/**
 * Show a dialog until it is answered: what `read` gives when its action is taken, null when it is left. `read` may
 * throw or reject; the message is then shown and the dialog stays.
 * @param {{title: string, body: Node[], action?: string, danger?: boolean, cancel?: string, read?: () => any, wide?: boolean}} options
 */
export function dialog({ title, body, action, danger = false, cancel = "Cancel", read = () => true, wide = false }) {
  return new Promise((resolve) => {
    const problem = el("p", { class: "problem", role: "alert", hidden: true });
    const leave = el("button", { type: "button", onclick: () => box.close() }, action === undefined ? "Close" : cancel);
    const go = action === undefined ? null : el("button", { type: "submit", class: danger ? "danger" : "primary" }, action);
    const heading = el("h2", {}, title);
    const form = el("form", { novalidate: true }, heading, ...body, problem, el("div", { class: "buttons" }, leave, go));
    const box = el("dialog", { "aria-label": title, class: wide ? "wide" : null }, form);
    let answer = null;
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      if (go === null || go.disabled) return;
      go.disabled = true;
      try {
        answer = await read();
        box.close();
      } catch (error) {
        problem.textContent = error.message;
        problem.hidden = false;
      } finally {
        go.disabled = false;
      }
    });
    const before = document.activeElement;
    box.addEventListener("close", () => {
      box.remove();
      if (before instanceof HTMLElement && before.isConnected) before.focus();
      resolve(answer);
    });
    document.body.append(box);
    box.showModal();
  });
}

/** Ask before something that cannot be undone. */
export const confirm = (title, message, action) =>
  dialog({ title, body: [el("p", {}, message)], action, danger: true });

/** Say something for a while; errors stay until they are closed. */
export function toast(message, { error = false } = {}) {
  const close = el("button", { type: "button", class: "quiet", "aria-label": "Close message", onclick: () => note.remove() }, "×");
  const note = el("div", { class: error ? "toast error" : "toast" }, el("p", {}, message), close);
  byId("toasts").append(note);
  while (byId("toasts").children.length > 4) byId("toasts").firstChild.remove();
  if (!error) setTimeout(() => note.remove(), 5000);
}
