// A model's plan in words: what would happen if it were asked for now.

import { el } from "./dom.js";
import { bytes, list, seconds } from "./format.js";

const VERDICTS = {
  ready: "It is in memory and takes requests.",
  loads: "It would be loaded at once, or its load runs already.",
  loads_after_eviction: "It would be loaded once other models have left.",
  waits: "It would have to wait.",
  never_fits: "It can never fit; a request for it is refused.",
  backing_off: "Its last load failed a short while ago; until the retry requests for it are refused.",
  autoload_off: "It is not loaded, and requests may not load models (models.autoload).",
};
const WHY = { pinned: "is pinned", leased: "is in use", min_residency: "was loaded a moment ago" };

/** The plan as elements for a dialog. */
export function describePlan(plan) {
  const rows = [
    ["Needs", bytes(plan.needed_bytes)],
    ["Free now", plan.free_bytes > 0 ? bytes(plan.free_bytes) : "nothing"],
    ["Would leave", list(plan.evicts)],
    ["Waits for", list(plan.waits_for)],
    ["In the way", plan.blocked_by.map(({ id, why }) => `${id} ${WHY[why] ?? why}`).join(", ")],
    ["Goes to", plan.order.some((name) => name !== "here") ? plan.order.map((name) => (name === "here" ? "this daemon" : `peer ${name}`)).join(", then ") : ""],
    ["Ready in", plan.eta_s === null || plan.verdict === "ready" ? "" : seconds(plan.eta_s)],
  ];
  const shown = rows.filter(([, value]) => value !== "");
  return [
    el("p", { class: "verdict" }, VERDICTS[plan.verdict] ?? plan.verdict),
    el("dl", { class: "facts" }, ...shown.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
  ];
}
