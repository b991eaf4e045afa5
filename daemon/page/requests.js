// Requests that run or wait. The feed tells when one moves; tokens and rates are asked for while somebody looks.

import { ApiError } from "./api.js";
import { guard } from "./access.js";
import { batched, byId, el, Rows, show, text, attribute } from "./dom.js";
import { count, number, rate, seconds } from "./format.js";
import { KeyNotGiven } from "./key.js";

const INTERVAL = 2000;
const SHOWN = 200;
const ORDER = ["decoding", "prefilling", "waiting", "tokenizing", "queued"];

export class RequestsPanel {
  constructor(store, api, actions) {
    this.store = store;
    this.api = api;
    this.asking = false;
    this.rows = new Rows(byId("requests"), (request) => request.id, (request) => makeRow(request.id, store, actions));
    store.on(["requests", "access"], batched(() => this.render()));
    setInterval(() => this.#refresh(), INTERVAL);
  }

  render() {
    const requests = [...this.store.requests.values()];
    requests.sort((one, other) => rank(one) - rank(other) || (one.position ?? 0) - (other.position ?? 0) || one.received - one.age_s - (other.received - other.age_s));
    const queued = requests.filter(({ state }) => state === "queued").length;
    this.rows.render(requests.slice(0, SHOWN));
    const more = requests.length > SHOWN ? ` · the first ${SHOWN} are shown` : "";
    text(byId("requests-figures"), requests.length === 0 ? "" : `${count(requests.length - queued, "request")} at work · ${queued} queued${more}`);
    show(byId("requests-empty"), requests.length === 0);
  }

  tick() {
    this.rows.tick();
  }

  async #refresh() {
    if (this.asking || document.hidden || this.store.requests.size === 0) return;
    this.asking = true;
    try {
      const { data } = await this.api.get("/admin/requests");
      this.store.refresh(data);
    } catch (error) {
      // the connection's own state tells of a daemon that does not answer
      if (!(error instanceof ApiError || error instanceof TypeError || error instanceof KeyNotGiven)) throw error;
    } finally {
      this.asking = false;
    }
  }
}

const rank = ({ state }) => ORDER.indexOf(state);

function makeRow(id, store, actions) {
  const cell = (name, label) => el("p", { class: `cell ${name}`, data: { label } });
  const parts = { model: el("strong"), from: el("span", { class: "also" }), state: el("span", { class: "state" }), waits: el("span", { class: "also" }) };
  const age = cell("age", "Age");
  const tokens = cell("tokens", "Tokens");
  const speed = cell("rate", "Rate");
  const cancel = el("button", { type: "button", class: "quiet", "aria-label": `Cancel ${id}`, data: { needs: "admin" }, onclick: () => actions.cancelRequest(id) }, "Cancel");
  const node = el(
    "li",
    { data: { request: id } },
    el("p", { class: "cell name" }, parts.model, parts.from, el("code", {}, id)),
    el("p", { class: "cell" }, parts.state, parts.waits),
    age,
    tokens,
    speed,
    el("div", { class: "cell actions" }, cancel),
  );
  const tick = () => {
    const request = store.requests.get(id);
    if (request !== undefined) text(age, seconds(request.age_s + Math.max(0, store.time - request.received)));
  };
  const update = (request) => {
    text(parts.model, request.model);
    text(parts.from, request.key === null ? request.api : `${request.api} · key ${request.key}`);
    text(parts.state, request.state);
    attribute(parts.state, "data-state", request.state);
    text(parts.waits, waitText(request));
    text(tokens, tokensText(request));
    text(speed, request.decode_tps === null ? "" : rate(request.decode_tps));
    tick();
    guard(cancel, store);
  };
  return { node, update, tick };
}

function waitText({ position, waiting_for }) {
  if (waiting_for === null) return "";
  const what = { model: "its model", slot: "a place in the batch", memory: "memory" }[waiting_for] ?? waiting_for;
  return position === null ? `for ${what}` : `${ordinal(position)} in line for ${what}`;
}

function ordinal(place) {
  const ending = place % 100 > 10 && place % 100 < 14 ? "th" : ({ 1: "st", 2: "nd", 3: "rd" }[place % 10] ?? "th");
  return `${number(place)}${ending}`;
}

function tokensText({ prompt_tokens, cached_tokens, completion_tokens }) {
  if (prompt_tokens === 0 && completion_tokens === 0) return "";
  const cached = cached_tokens > 0 ? ` (${number(cached_tokens)} kept)` : "";
  return `${number(prompt_tokens)}${cached} in · ${number(completion_tokens)} out`;
}
