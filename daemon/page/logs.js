// The end of the daemon's log, followed while the section is open and not paused.

import { ApiError } from "./api.js";
import { byId, el, text, attribute } from "./dom.js";
import { KeyNotGiven } from "./key.js";
import { events } from "./sse.js";

const LEVELS = ["debug", "info", "warning", "error"];
const KEPT = 500;
const RETRY = 2000;
const PLAIN = new Set(["seq", "timestamp", "level", "event", "logger"]);

export class LogPanel {
  constructor(api) {
    this.api = api;
    this.log = byId("log");
    this.level = byId("log-level");
    this.button = byId("log-pause");
    this.aborter = null;
    this.isPaused = false;
    this.isOpen = false;
    this.level.addEventListener("change", () => this.#filter());
    this.button.addEventListener("click", () => {
      this.isPaused = !this.isPaused;
      attribute(this.button, "aria-pressed", String(this.isPaused));
      this.#switch();
    });
    this.#filter();
  }

  /** The section is open now, or is not. */
  open(isOpen) {
    if (isOpen === this.isOpen) return;
    this.isOpen = isOpen;
    this.#switch();
  }

  /** Read everything anew: with another key, or from a daemon that was started again. */
  restart() {
    this.#switch();
  }

  #switch() {
    this.aborter?.abort();
    this.aborter = null;
    if (this.isPaused) return text(byId("log-state"), "paused");
    if (this.isOpen) this.#follow((this.aborter = new AbortController()));
  }

  async #follow(aborter) {
    while (!aborter.signal.aborted) {
      try {
        await this.#read(aborter.signal);
      } catch (error) {
        if (aborter.signal.aborted) return;
        if (error instanceof ApiError || error instanceof KeyNotGiven) return this.#unavailable(error);
      }
      text(byId("log-state"), "reconnecting");
      await new Promise((resolve) => setTimeout(resolve, RETRY));
    }
  }

  async #read(signal) {
    const { data } = await this.api.get(`/admin/logs?limit=200`, { signal });
    this.log.replaceChildren();
    this.#add(data);
    text(byId("log-state"), "");
    const since = data[data.length - 1]?.seq ?? 0;
    const response = await this.api.open("GET", `/admin/logs?follow=true&since=${since}`, { signal });
    for await (const { event, data: line } of events(response)) {
      if (event === "log") this.#add([JSON.parse(line)]);
    }
  }

  #unavailable(error) {
    const missing = [404, 405].includes(error.status);
    text(byId("log-state"), missing ? "not available" : error.message);
  }

  #add(records) {
    const atEnd = this.log.scrollTop + this.log.clientHeight >= this.log.scrollHeight - 8;
    this.log.append(...records.map(line));
    while (this.log.children.length > KEPT) this.log.firstChild.remove();
    if (atEnd) this.log.scrollTop = this.log.scrollHeight;
  }

  #filter() {
    const least = LEVELS.indexOf(this.level.value);
    LEVELS.forEach((level, place) => this.log.classList.toggle(`no-${level}`, place < least));
  }
}

function line(record) {
  const level = String(record.level ?? "info").toLowerCase();
  const fields = Object.entries(record).filter(([name]) => !PLAIN.has(name));
  const shown = fields.map(([name, value]) => `${name}=${typeof value === "string" ? value : JSON.stringify(value)}`);
  return el(
    "div",
    { class: "line", title: record.logger, data: { level: level === "critical" ? "error" : level } },
    el("time", { title: record.timestamp }, clock(record.timestamp)),
    el("span", { class: "level" }, level),
    el("strong", {}, String(record.event ?? "")),
    el("span", { class: "rest" }, shown.join(" ")),
  );
}

/** The time of day, of seconds since the epoch or an ISO date. */
function clock(stamp) {
  const date = new Date(typeof stamp === "number" ? stamp * 1000 : stamp);
  return Number.isNaN(date.getTime()) ? String(stamp ?? "") : date.toLocaleTimeString(undefined, { hour12: false });
}
