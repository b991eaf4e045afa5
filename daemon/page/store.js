// What the daemon has told: models, requests, memory, decisions. Views subscribe to the parts that they show.

const KEPT_DECISIONS = 1000;

export class Store {
  constructor(now = Date.now) {
    this.models = new Map();
    this.requests = new Map();
    this.memory = null;
    this.decisions = [];
    /** Downloads by their number; null where the daemon has none. */
    this.pulls = null;
    /** Whether this key may change things; null until it is known. */
    this.canChange = null;
    this.skew = 0;
    this.listeners = new Map();
    this.now = now;
  }

  /** Seconds since the epoch on the daemon's clock. */
  get time() {
    return this.now() / 1000 + this.skew;
  }

  /** Call `listener` after a change of one of these parts: models, requests, memory, decisions, earlier, access, pulls, snapshot. */
  on(parts, listener) {
    for (const part of parts) {
      if (!this.listeners.has(part)) this.listeners.set(part, []);
      this.listeners.get(part).push(listener);
    }
  }

  #tell(part, what) {
    for (const listener of this.listeners.get(part) ?? []) listener(what);
  }

  /** Learn the daemon's clock from the Date header of an answer, which has whole seconds. */
  setClock(header) {
    const difference = (Date.parse(header ?? "") - this.now()) / 1000;
    this.skew = Math.abs(difference) > 2 ? difference : 0;
  }

  allow(canChange) {
    this.canChange = canChange;
    this.#tell("access");
  }

  snapshot({ models, requests, memory, decisions, pulls }) {
    this.setModels(models);
    this.requests = new Map(requests.map((each) => [each.id, this.#received(each)]));
    this.memory = memory;
    this.decisions = decisions;
    this.pulls = pulls === undefined ? null : new Map(pulls.map((pull) => [pull.id, pull]));
    for (const part of ["requests", "memory", "decisions", "pulls", "snapshot"]) this.#tell(part);
  }

  setModels(models) {
    this.models = new Map(models.map((model) => [model.id, model]));
    this.#tell("models", null);
  }

  /** Take one event of the feed after the snapshot. */
  take(kind, data) {
    if (kind === "model") this.#model(data.model);
    else if (kind === "request") this.#request(data.request);
    else if (kind === "memory") this.#set("memory", data.memory);
    else if (kind === "decision") this.#decision(data.decision);
    else if (kind === "pull") this.#pull(data.pull);
  }

  /** Newer figures of requests that are still known; whether one comes or goes only the feed tells. */
  refresh(requests) {
    for (const each of requests) {
      if (this.requests.has(each.id)) this.requests.set(each.id, this.#received(each));
    }
    this.#tell("requests");
  }

  /** Earlier decisions than those of the snapshot. */
  addEarlier(decisions) {
    const first = this.decisions[0]?.seq ?? Infinity;
    this.decisions = [...decisions.filter((each) => each.seq < first), ...this.decisions];
    this.#tell("decisions");
    this.#tell("earlier");
  }

  #model(model) {
    if (model.removed) this.models.delete(model.id);
    else this.models.set(model.id, model);
    this.#tell("models", model);
  }

  #request(request) {
    if (request.ended) this.requests.delete(request.id);
    else this.requests.set(request.id, this.#received(request));
    this.#tell("requests");
  }

  #pull(pull) {
    if (pull.removed) this.pulls?.delete(pull.id);
    else this.pulls?.set(pull.id, pull);
    this.#tell("pulls");
  }

  #decision(decision) {
    this.#set("decisions", [...this.decisions, decision].slice(-KEPT_DECISIONS));
  }

  #set(part, value) {
    this[part] = value;
    this.#tell(part);
  }

  #received(request) {
    return { ...request, received: this.time };
  }
}
