// Bars of the models that were in memory, marks where one left, and the list of why.

import { attribute, batched, byId, el, Rows, show, style, text } from "./dom.js";
import { bytes, seconds, time } from "./format.js";

const TICKS = [1, 2 / 3, 1 / 3, 0];
const LISTED = 12;
const REASONS = {
  lru: "its room was needed and it was idle longest",
  prefill: "a prompt needed its room",
  decode: "answers that got longer needed its room",
  memory_soft: "memory was above the soft limit",
  memory_ceiling: "memory was above the ceiling",
  ttl: "it was idle for its time to live",
  drained: "an operator unloaded it",
  force: "an operator forced it out",
};

export class Timeline {
  constructor(store, history) {
    this.store = store;
    this.history = history;
    const root = byId("timeline");
    this.ticks = TICKS.map(() => el("span"));
    const axis = el("div", { class: "axis", "aria-hidden": "true" }, ...this.ticks);
    const lanes = el("ul", { class: "lanes", "aria-label": "Models in memory", tabindex: "0" });
    root.append(lanes, axis);
    this.lanes = new Rows(lanes, ([id]) => id, () => makeLane());
    this.leavings = new Rows(byId("evictions"), (each) => `${each.at} ${each.model}`, makeLeaving);
    this.render_soon = batched(() => this.render());
    history.onChange = this.render_soon;
  }

  render() {
    const now = this.store.time;
    const recent = [...this.history.recent()].sort(([one], [other]) => (one < other ? -1 : 1));
    const leavings = this.history.leavings;
    const view = { now, reach: this.history.reach };
    const lanes = recent.map(([id, spans]) => [id, spans, leavings.filter((each) => each.model === id), view]);
    this.ticks.forEach((tick, place) => text(tick, TICKS[place] === 0 ? "now" : `${ago(TICKS[place] * view.reach)} ago`));
    this.lanes.render(lanes);
    this.leavings.render([...leavings].reverse().slice(0, LISTED));
    show(byId("timeline"), lanes.length > 0);
    show(byId("timeline-empty"), lanes.length === 0);
    show(byId("evictions-title"), leavings.length > 0);
  }
}

/** Where a moment is in the window, from 0 to 1. */
const place = (at, { now, reach }) => Math.min(1, Math.max(0, 1 - (now - at) / reach)).toFixed(4);

const ago = (past) => (past < 100 ? `${Math.round(past)} s` : `${Math.round(past / 60)} min`);

function makeLane() {
  const name = el("span", { class: "name" });
  const bars = el("span", { class: "track" });
  const spans = new Rows(bars, (each) => each.key, makeMark);
  const told = el("span", { class: "sr" });
  const node = el("li", {}, name, bars, told);
  const update = ([id, known, leavings, view]) => {
    text(name, id);
    attribute(name, "title", id);
    const shown = known.map((span) => ({ ...span, key: `span ${span.from}`, view, title: `${id}: ${spanText(span, view.now)}` }));
    const marks = leavings.map((each) => ({ at: each.at, key: `left ${each.at}`, kind: each.kind, view, title: `${time(each.at)} ${each.model} left: ${reasonText(each)}` }));
    spans.render([...shown, ...marks]);
    text(told, known.map((span) => spanText(span, view.now)).join(", "));
  };
  return { node, update };
}

function makeMark(item) {
  const node = el("span", { class: item.at === undefined ? "span" : "left" });
  const update = ({ from, to, at, kind, view, title }) => {
    attribute(node, "title", title);
    if (at !== undefined) {
      attribute(node, "data-kind", kind);
      return style(node, "--from", place(at, view));
    }
    style(node, "--from", place(from, view));
    style(node, "--to", place(to ?? view.now, view));
    attribute(node, "data-open", to === null);
  };
  return { node, update };
}

function makeLeaving(item) {
  const node = el(
    "li",
    {},
    el("time", {}, time(item.at)),
    el("strong", {}, item.model),
    el("span", { class: "tag" }, item.kind),
    el("span", { class: "reason" }, reasonText(item)),
  );
  return { node, update: () => {} };
}

function spanText({ from, to }, now) {
  return `in memory from ${time(from)} ${to === null ? "until now" : `to ${time(to)}`} (${seconds((to ?? now) - from)})`;
}

/** Why a model left, in words, with the reason's own name. */
function reasonText({ reason, for_model, inputs }) {
  const why = REASONS[reason] === undefined ? reason : `${REASONS[reason]} (${reason})`;
  const whom = for_model ? `, for ${for_model}` : "";
  const need = typeof inputs?.needed_bytes === "number" ? `, which needs ${bytes(inputs.needed_bytes)}` : "";
  return why + whom + (for_model ? need : "");
}
