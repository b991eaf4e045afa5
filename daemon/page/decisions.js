// The log of decisions, newest first, each with the numbers it was made of.

import { batched, byId, el, Rows, show, text } from "./dom.js";
import { time } from "./format.js";

const SHOWN = 200;

export class DecisionsPanel {
  constructor(store) {
    this.store = store;
    this.kind = byId("decisions-kind");
    this.model = byId("decisions-model");
    this.kinds = new Set();
    this.rows = new Rows(byId("decisions"), ({ seq, at }) => `${seq} ${at}`, makeRow);
    const render = batched(() => this.render());
    store.on(["decisions"], render);
    this.kind.addEventListener("change", render);
    this.model.addEventListener("input", render);
  }

  render() {
    const { decisions } = this.store;
    this.#offer(decisions);
    const wanted = this.model.value.trim().toLowerCase();
    const found = decisions.filter(({ kind, model, for_model }) => {
      const named = wanted === "" || [model, for_model].some((name) => name?.toLowerCase().includes(wanted));
      return named && (this.kind.value === "" || kind === this.kind.value);
    });
    this.rows.render(found.slice(-SHOWN).reverse());
    show(byId("decisions-empty"), found.length === 0);
    text(byId("decisions-empty"), decisions.length === 0 ? "Nothing was decided yet." : "No decision is like that.");
  }

  #offer(decisions) {
    for (const { kind } of decisions) {
      if (this.kinds.has(kind)) continue;
      this.kinds.add(kind);
      this.kind.append(el("option", { value: kind }, kind));
    }
  }
}

function makeRow(decision) {
  const { at, kind, model, reason, for_model, for_request, inputs } = decision;
  const whom = [for_model, for_request].filter((each) => each !== null).join(" · ");
  const when = el("time");
  const summary = el(
    "summary",
    {},
    when,
    el("span", { class: "tag", data: { kind } }, kind),
    el("strong", {}, model ?? ""),
    el("span", { class: "reason" }, reason),
    el("span", { class: "also" }, whom === "" ? "" : `for ${whom}`),
  );
  const details = el("details", {}, summary);
  details.addEventListener("toggle", () => {
    if (details.open && details.children.length === 1) details.append(el("pre", { tabindex: "0" }, JSON.stringify(inputs, null, 2)));
  });
  return { node: el("li", {}, details), update: () => text(when, time(at)) };
}
