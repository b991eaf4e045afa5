// The list of models: those at work first, those that are not loaded in short.

import { explainPath } from "./api.js";
import { attribute, batched, byId, Rows, show, text } from "./dom.js";
import { bytes, count } from "./format.js";
import { makeModelRow } from "./model_row.js";

// So many models that are not loaded are shown before somebody asks for all.
const SHORT = 8;
const HOVER = 200;

export class ModelsPanel {
  constructor(store, api, actions, memory) {
    this.store = store;
    this.api = api;
    this.memory = memory;
    this.all = false;
    this.timer = null;
    this.looked_at = null;
    this.filter = byId("models-filter");
    this.rows = new Rows(byId("models"), (model) => model.id, (model) => makeModelRow(model.id, store, actions));
    this.render_soon = batched(() => this.render());
    store.on(["models", "access"], this.render_soon);
    this.filter.addEventListener("input", this.render_soon);
    byId("models-more").addEventListener("click", () => {
      this.all = !this.all;
      this.render();
    });
    this.#watch(byId("models"));
  }

  render() {
    const wanted = this.filter.value.trim().toLowerCase();
    const models = [...this.store.models.values()];
    const found = models.filter((model) => wanted === "" || names(model).some((name) => name.toLowerCase().includes(wanted)));
    found.sort((one, other) => Number(isIdle(one)) - Number(isIdle(other)) || compare(one.id, other.id));
    const busy = found.filter((model) => !isIdle(model)).length;
    const hidden = wanted === "" && found.length - busy > SHORT + 1 ? found.length - busy - SHORT : 0;
    this.rows.render(hidden > 0 && !this.all ? found.slice(0, busy + SHORT) : found);
    const more = byId("models-more");
    show(more, hidden > 0);
    text(more, this.all ? "Show fewer" : `Show ${hidden} more that are not loaded`);
    attribute(more, "aria-expanded", String(this.all));
    show(byId("models-empty"), found.length === 0);
    text(byId("models-empty"), models.length === 0 ? "The daemon knows no model yet." : "No model has this in its name.");
    const resident = models.filter((model) => model.resident_bytes > 0);
    const held = resident.reduce((sum, model) => sum + model.resident_bytes, 0);
    text(byId("models-figures"), models.length === 0 ? "" : `${resident.length} of ${count(models.length, "model")} in memory · ${bytes(held)}`);
  }

  /** Tell what would leave for the model that the pointer or the focus is on. */
  #watch(list) {
    const look = (event) => this.#look(event.target.closest?.("li[data-model]")?.dataset.model ?? null);
    list.addEventListener("pointerover", look);
    list.addEventListener("focusin", look);
    list.addEventListener("pointerleave", () => this.#look(null));
    list.addEventListener("focusout", (event) => {
      if (!list.contains(event.relatedTarget)) this.#look(null);
    });
  }

  #look(id) {
    if (id === this.looked_at) return;
    this.looked_at = id;
    clearTimeout(this.timer);
    const isResident = (this.store.models.get(id)?.resident_bytes ?? 0) > 0;
    if (id === null || isResident) return this.memory.highlight(null);
    this.timer = setTimeout(() => this.#explain(id), HOVER);
  }

  async #explain(id) {
    try {
      const plan = await this.api.get(explainPath(id));
      if (this.looked_at === id) this.memory.highlight(plan);
    } catch {
      this.memory.highlight(null); // only a hint; the button "Why" tells what is wrong
    }
  }
}

const names = (model) => [model.id, ...model.aliases];

const isIdle = (model) => model.state === "unloaded" && model.queued === 0;

const compare = (one, other) => (one < other ? -1 : one > other ? 1 : 0);
