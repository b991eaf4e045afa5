// Follows /admin/events: a snapshot, then every change. After a break or a gap it goes on from the last event; the
// daemon sends a new snapshot where that cannot be.

import { ApiError } from "./api.js";
import { KeyNotGiven } from "./key.js";
import { events } from "./sse.js";

const FIRST_DELAY = 250;
const LONGEST_DELAY = 4000;
// Milliseconds without a byte, keep-alives included, after which a connection is taken for dead.
const SILENCE = 45_000;
const MODELS_INTERVAL = 3000;

export class Feed {
  /**
   * @param {import("./api.js").Api} api
   * @param {import("./store.js").Store} store
   * @param {(state: "connecting"|"live"|"reconnecting"|"stopped", message?: string) => void} onState
   */
  constructor(api, store, onState) {
    this.api = api;
    this.store = store;
    this.onState = onState;
    this.last = null;
    this.failures = 0;
    this.run = 0;
    this.aborter = null;
  }

  /** Start over: with a new key, or for the first time. */
  restart() {
    this.last = null;
    this.resume();
  }

  /** Go on from the last event. */
  resume() {
    this.pause();
    this.failures = 0;
    this.#follow(this.run);
  }

  /** Let go of the connection while nobody looks: a browser has only a few, which all tabs share. */
  pause() {
    this.run += 1;
    this.aborter?.abort();
    this.onState("connecting");
  }

  async #follow(run) {
    while (run === this.run) {
      try {
        await this.#read(run);
      } catch (error) {
        if (run !== this.run) return;
        if (error instanceof KeyNotGiven) return this.onState("stopped", error.message);
        if (error instanceof ApiError && error.status === 403) return this.#models(run, error.message);
        this.why = error instanceof ApiError ? error.message : "";
      }
      if (run !== this.run) return;
      this.onState("reconnecting", this.why);
      await this.#pause();
    }
  }

  async #read(run) {
    const aborter = (this.aborter = new AbortController());
    const since = this.last === null ? "" : `?since=${this.last}`;
    const began = performance.now();
    let timer = setTimeout(() => aborter.abort(), SILENCE);
    try {
      const response = await this.api.open("GET", `/admin/events${since}`, { signal: aborter.signal });
      this.store.setClock(response.headers.get("Date"));
      for await (const event of events(response)) {
        clearTimeout(timer);
        timer = setTimeout(() => aborter.abort(), SILENCE);
        if (run !== this.run) return;
        if (performance.now() - began > LONGEST_DELAY) this.failures = 0;
        this.why = "";
        if (event.data !== undefined && !this.#taken(event)) return;
        this.onState("live");
      }
    } finally {
      clearTimeout(timer);
      aborter.abort();
    }
  }

  /** Take one event; false when one before it was missed, or it could not be shown, after which all is asked for anew. */
  #taken(event) {
    try {
      return this.#take(event);
    } catch (error) {
      reportError(error);
      this.last = null;
      return false;
    }
  }

  /** Take one event; false when one before it was missed. */
  #take({ event, data }) {
    const news = JSON.parse(data);
    if (event === "snapshot") {
      this.store.snapshot(news);
    } else if (this.last !== null && news.seq !== this.last + 1) {
      return false;
    } else {
      this.store.take(event, news);
    }
    this.last = news.seq;
    return true;
  }

  /** Milliseconds that double with each connection that did not last; a random half of it keeps many pages apart. */
  #pause() {
    const delay = Math.min(LONGEST_DELAY, FIRST_DELAY * 2 ** this.failures);
    this.failures += 1;
    return new Promise((resolve) => setTimeout(resolve, delay / 2 + (Math.random() * delay) / 2));
  }

  /** A key for some models alone may list those. */
  async #models(run, why) {
    this.onState("stopped", why);
    for (;;) {
      try {
        const { data } = await this.api.get("/admin/models");
        if (run !== this.run) return;
        this.store.setModels(data);
      } catch (error) {
        if (error instanceof ApiError || error instanceof KeyNotGiven) return;
        if (!(error instanceof TypeError)) throw error;
      }
      await new Promise((resolve) => setTimeout(resolve, MODELS_INTERVAL));
      if (run !== this.run) return;
    }
  }
}
