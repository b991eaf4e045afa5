// Which models were in memory, and when: what decisions tell of the time before, and what the feed tells since.

const RESIDENT = new Set(["loading", "ready", "draining", "unloading"]);
const BEGINS = new Set(["load", "restart"]);
const ENDS = new Set(["evict", "unload", "expire", "refuse"]);
/** Seconds of the past that are kept. */
const WINDOW = 1800;
const REACHES = [120, 300, 900];
/** Decisions that are remembered as seen: more than a daemon gives at once. */
const SEEN = 2000;
/** Models that left, at most; so many are enough for a page that nobody looks at for days. */
const LEAVINGS = 1000;

export class History {
  /** @param {import("./store.js").Store} store */
  constructor(store) {
    this.store = store;
    this.spans = new Map();
    this.leavings = [];
    this.seen = new Set();
    this.onChange = () => {};
    store.on(["snapshot", "earlier"], () => this.#meet());
    store.on(["decisions"], () => this.#read());
    store.on(["models"], (model) => this.#follow(model));
  }

  /** Spans of the last WINDOW seconds by model: {from, to}, `to` null while it goes on. */
  recent() {
    this.#forget();
    return this.spans;
  }

  /** Drop what is older than the window. */
  #forget() {
    const start = this.store.time - WINDOW;
    for (const [id, spans] of this.spans) {
      const kept = spans.filter((span) => span.to === null || span.to > start);
      if (kept.length > 0) this.spans.set(id, kept);
      else this.spans.delete(id);
    }
    this.leavings = this.leavings.filter((each) => each.at > start).slice(-LEAVINGS);
    for (const seen of this.seen) {
      if (this.seen.size <= SEEN) break;
      this.seen.delete(seen);
    }
  }

  /** Seconds of the past that a picture of it needs: a short one at first, WINDOW in the end. */
  get reach() {
    const first = Math.min(this.store.time, ...[...this.spans.values()].flat().map((span) => span.from));
    return REACHES.find((reach) => first >= this.store.time - reach) ?? WINDOW;
  }

  #meet() {
    for (const id of this.spans.keys()) {
      if (!this.store.models.has(id)) this.#end(id, this.store.time);
    }
    for (const model of this.store.models.values()) this.#state(model);
    this.onChange();
  }

  #follow(model) {
    if (model === null) return;
    if (model.removed) this.#end(model.id, this.store.time);
    else this.#state(model);
    this.onChange();
  }

  #state(model) {
    if (!RESIDENT.has(model.state)) this.#end(model.id, this.store.time);
    else if (this.#open(model.id) === null) this.#begin(model.id, model.loaded_at === null ? this.store.time : model.loaded_at - (model.load_seconds ?? 0));
  }

  #read() {
    const fresh = this.store.decisions.filter((each) => !this.seen.has(key(each)));
    for (const decision of fresh.sort((one, other) => one.at - other.at)) {
      this.seen.add(key(decision));
      this.#take(decision);
    }
    this.#forget();
    this.onChange();
  }

  #take({ kind, model, at, reason, for_model, inputs }) {
    if (model === null) return;
    if (BEGINS.has(kind)) this.#begin(model, at);
    if (!ENDS.has(kind)) return;
    const was = this.#open(model);
    if (kind === "refuse") return this.#refused(model, at);
    this.#end(model, at);
    if (was !== null || kind !== "unload") this.leavings.push({ model, at, kind, reason, for_model, inputs });
  }

  /** A load that failed ends what it began; a refusal of a model that is in memory ends nothing. */
  #refused(id, at) {
    const state = this.store.models.get(id)?.state;
    if (!RESIDENT.has(state)) this.#end(id, at);
  }

  #begin(id, from) {
    const spans = this.spans.get(id) ?? [];
    if (spans.some((span) => span.to === null || (span.from <= from && from < span.to))) return;
    this.spans.set(id, [...spans, { from, to: null }].sort((one, other) => one.from - other.from));
  }

  #end(id, at) {
    const span = this.#open(id);
    if (span !== null) span.to = Math.max(span.from, at);
  }

  #open(id) {
    return this.spans.get(id)?.find((span) => span.to === null) ?? null;
  }
}

const key = ({ seq, at }) => `${seq} ${at}`;
