// One stacked bar of memory with its limits, and what would leave for a model.

import { attribute, batched, byId, el, Rows, style, text } from "./dom.js";
import { bytes, list } from "./format.js";

const PARTS = [
  ["kv", "KV caches"],
  ["prefix_cache", "kept prefixes"],
  ["mlx_cache", "MLX's cache"],
  ["base", "the program itself"],
  ["unexplained", "unexplained"],
];
// The line is always there, so that nothing moves away from under the pointer.
const HINT = "Point at a model that is not loaded to see who would leave for it.";
// Shades of the accent for the weights of models, one after another.
const SHADES = 4;

export class MemoryPanel {
  constructor(store) {
    this.store = store;
    this.leaving = new Set();
    this.bar = byId("memory-bar");
    this.segments = new Rows(this.bar, (part) => part.key, makeSegment);
    this.legend = new Rows(byId("memory-legend"), (part) => part.key, makeLegend);
    const render = batched(() => this.render());
    this.render_soon = render;
    this.highlight(null);
    store.on(["memory"], render);
  }

  /** Show which models would leave for one, by its plan; null shows none. */
  highlight(plan) {
    this.leaving = new Set(plan?.evicts ?? []);
    text(byId("memory-plan"), plan === null ? HINT : planInShort(plan));
    this.render_soon();
  }

  render() {
    const memory = this.store.memory;
    if (memory === null) return;
    const full = Math.max(memory.ceiling_bytes * 1.04, memory.footprint_bytes);
    const parts = partsOf(memory).map((part) => ({ ...part, share: part.bytes / full, leaves: this.leaving.has(part.model) }));
    const marks = [
      { key: "mark soft", mark: "soft", at: memory.soft_bytes / full },
      { key: "mark ceiling", mark: "ceiling", at: memory.ceiling_bytes / full },
    ];
    this.segments.render([...parts.filter((part) => part.bytes > 0), ...marks]);
    const limits = [
      { key: "soft", label: "soft limit", bytes: memory.soft_bytes, kind: "soft" },
      { key: "ceiling", label: "ceiling", bytes: memory.ceiling_bytes, kind: "ceiling" },
    ];
    this.legend.render([...parts, ...limits]);
    attribute(this.bar, "aria-label", summary(memory));
    attribute(this.bar, "data-pressure", memory.pressure);
    text(byId("memory-figures"), figures(memory));
  }
}

/** The parts of the footprint, in the order of the bar: weights model by model, then the rest. */
function partsOf(memory) {
  const models = memory.models.map(({ id, weight_bytes }, place) => ({
    key: `model ${id}`,
    model: id,
    label: id,
    bytes: weight_bytes,
    kind: `weights-${place % SHADES}`,
  }));
  const others = memory.parts.weights - models.reduce((sum, model) => sum + model.bytes, 0);
  const moving = { key: "moving", label: "weights on their way", bytes: Math.max(0, others), kind: "moving" };
  const rest = PARTS.map(([key, label]) => ({ key, label, bytes: memory.parts[key], kind: key }));
  return [...models, ...(moving.bytes > 0 ? [moving] : []), ...rest];
}

function figures(memory) {
  const used = `${bytes(memory.footprint_bytes)} of ${bytes(memory.ceiling_bytes)}`;
  const pressed = memory.pressure === "ok" ? "" : ` · above the ${memory.pressure === "soft" ? "soft limit" : "ceiling"}`;
  const outside = memory.outside.reason ? ` · others need memory: ${memory.outside.reason}` : "";
  return `${used} · limit: ${memory.limit}${pressed}${outside}`;
}

function summary(memory) {
  const parts = partsOf(memory).filter((part) => part.bytes > 0);
  const told = parts.map((part) => `${part.label} ${bytes(part.bytes)}`).join(", ");
  return `Memory: ${figures(memory)}. Soft limit ${bytes(memory.soft_bytes)}. ${told}.`;
}

function planInShort({ model, evicts, verdict }) {
  if (evicts.length > 0) return `For ${model} would leave: ${list(evicts)}.`;
  return verdict === "ready" ? `${model} is in memory.` : `Nobody would leave for ${model} now.`;
}

function makeSegment(item) {
  const node = el("span", item.mark ? { class: `mark ${item.mark}` } : { class: "segment" });
  const update = (part) => {
    if (part.mark) return style(node, "--at", part.at.toFixed(4));
    attribute(node, "data-kind", part.kind);
    attribute(node, "data-leaves", part.leaves);
    attribute(node, "title", `${part.label}: ${bytes(part.bytes)}`);
    style(node, "--share", part.share.toFixed(4));
  };
  return { node, update };
}

function makeLegend() {
  const swatch = el("span", { class: "swatch", "aria-hidden": "true" });
  const name = el("span", { class: "name" });
  const size = el("span", { class: "size" });
  const node = el("li", {}, swatch, name, size);
  const update = (part) => {
    attribute(swatch, "data-kind", part.kind);
    text(name, part.label);
    text(size, bytes(part.bytes));
    attribute(node, "data-leaves", part.leaves === true);
  };
  return { node, update };
}
