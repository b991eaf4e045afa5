// Keys, peers and configuration, to be read; and a reload, whose difference is shown before it is applied.

import { ApiError } from "./api.js";
import { dialog, toast } from "./dialogs.js";
import { byId, el, show, text } from "./dom.js";
import { seconds } from "./format.js";
import { KeyNotGiven } from "./key.js";

export class SettingsPanel {
  constructor(api) {
    this.api = api;
    this.values = [];
    byId("config-filter").addEventListener("input", () => this.#showConfig());
    byId("reload").addEventListener("click", () => this.#reload());
  }

  async load() {
    const isAnswered = await this.#fill("keys", "/admin/keys", ({ data }) => {
      byId("keys").replaceChildren(...keyRows(data));
      show(byId("keys-scroll"), data.length > 0);
      show(byId("keys-note"), data.length === 0);
      text(byId("keys-note"), "There are none: whoever can connect may use and change everything.");
    });
    if (isAnswered && (await this.loadPeers())) await this.#fill("config", "/admin/config", (answer) => {
      this.values = settings(answer);
      show(byId("config-note"), false);
      show(byId("config-scroll"), true);
      this.#showConfig();
    });
  }

  /** The other servers as they are now; false as `#fill`. */
  loadPeers() {
    return this.#fill("peers", "/admin/peers", ({ data }) => {
      byId("peers").replaceChildren(...peerRows(data));
      show(byId("peers-scroll"), data.length > 0);
      show(byId("peers-note"), data.length === 0);
      text(byId("peers-note"), "There are none: [[peer]] entries of the configuration name other servers.");
    });
  }

  /** Show one answer, or what is wrong; false when a key was asked for in vain, which is enough of asking. */
  async #fill(name, path, fill) {
    try {
      fill(await this.api.get(path));
      return true;
    } catch (error) {
      if (!(error instanceof ApiError || error instanceof TypeError || error instanceof KeyNotGiven)) throw error;
      show(byId(`${name}-scroll`), false);
      show(byId(`${name}-note`), true);
      text(byId(`${name}-note`), error instanceof TypeError ? "The daemon does not answer." : error.message);
      return !(error instanceof KeyNotGiven);
    }
  }

  #showConfig() {
    const wanted = byId("config-filter").value.trim().toLowerCase();
    const found = this.values.filter(({ key }) => key.toLowerCase().includes(wanted));
    byId("config").replaceChildren(
      header(["Key", "Value", "From"]),
      el("tbody", {}, ...found.map(({ key, value, origin }) => row([key, shown(value), origin]))),
    );
  }

  async #reload() {
    try {
      const difference = await this.api.call("POST", "/admin/reload", { dry_run: true });
      if (isEmpty(difference)) {
        await dialog({ title: "Reload", body: [el("p", {}, "Nothing differs from what is in effect."), ...notes(difference)] });
        return;
      }
      const applied = await dialog({
        title: "Apply this configuration?",
        body: describeDiff(difference),
        action: "Apply",
        wide: true,
        read: () => this.api.call("POST", "/admin/reload", {}),
      });
      if (applied === null) return;
      toast("The configuration is applied.");
      await this.load();
    } catch (error) {
      if (!(error instanceof KeyNotGiven)) await this.#refused(error);
    }
  }

  async #refused(error) {
    const problems = error.details?.problems ?? [];
    const told = problems.map(({ message, key, source, line }) => {
      const where = [source, line === null ? null : `line ${line}`, key].filter(Boolean).join(", ");
      return el("li", {}, where === "" ? message : `${where}: ${message}`);
    });
    const what = told.length > 0 ? el("ul", {}, ...told) : el("p", {}, error.message);
    await dialog({ title: "The configuration cannot be applied", body: [what, el("p", { class: "hint" }, "Nothing was changed.")], wide: true });
  }
}

function keyRows(keys) {
  const rows = keys.map(({ name, scopes, models, created }) =>
    row([name, scopes.join(", "), models.length === 0 ? "all" : models.join(", "), String(created ?? "")]),
  );
  return [header(["Name", "Scopes", "Models", "Made"]), el("tbody", {}, ...rows)];
}

function peerRows(peers) {
  const rows = peers.map(({ name, state, error, models, requests, first_token_s: first, url }) =>
    row([name, error === null ? state : `${state}: ${error}`, String(models.length), String(requests), first === null ? "" : seconds(first), url]),
  );
  return [header(["Name", "State", "Models", "Requests", "First token", "Address"]), el("tbody", {}, ...rows)];
}

/** Every key with its value and where that comes from. */
function settings({ origins, ...values }) {
  return [...leaves(values, "")].map(([key, value]) => ({ key, value, origin: origins[key] ?? "default" }));
}

/** The keys of nested tables, named as the daemon does: models and peers by name, other elements by their place. */
function* leaves(value, at) {
  const below = (key) => (at === "" ? "" : `${at}.`) + (/^[A-Za-z0-9_-]+$/.test(key) ? key : `"${key}"`);
  const tables = Array.isArray(value) && value.length > 0 && value.every((each) => each !== null && typeof each === "object");
  if (tables) {
    for (const [place, each] of value.entries()) yield* leaves(each, NAMED.has(at) && each.name ? below(each.name) : `${at}[${place}]`);
  } else if (value !== null && typeof value === "object" && !Array.isArray(value)) {
    for (const [key, each] of Object.entries(value)) yield* leaves(each, below(key));
  } else if (!NAMED.has(at)) {
    yield [at, value];
  }
}

const NAMED = new Set(["model", "peer"]);

const isEmpty = ({ keys, models }) => keys.length === 0 && Object.values(models).every((names) => names.length === 0);

const WHEN = { now: "at once", reload: "once its models are loaded again", restart: "after a restart of the daemon" };
const MODELS = { added: "New models", removed: "Models that go", reloaded: "Models that are loaded again", changed: "Models that change and go on" };

function describeDiff({ keys, models, ...rest }) {
  const changes = keys.map(({ key, old, new: wanted, applies }) =>
    el("tr", {}, el("th", { scope: "row" }, key), el("td", {}, el("del", {}, shown(old)), " ", el("ins", {}, shown(wanted))), el("td", {}, WHEN[applies] ?? applies)),
  );
  const table = el("table", { class: "diff" }, header(["Key", "Change", "Counts"]), el("tbody", {}, ...changes));
  const named = Object.entries(models).filter(([, names]) => names.length > 0);
  return [
    ...(keys.length > 0 ? [el("div", { class: "scroll" }, table)] : []),
    el("dl", { class: "facts" }, ...named.flatMap(([kind, names]) => [el("dt", {}, MODELS[kind] ?? kind), el("dd", {}, names.join(", "))])),
    ...notes(rest),
  ];
}

const notes = ({ notes }) => (notes.length === 0 ? [] : [el("ul", { class: "hint" }, ...notes.map((note) => el("li", {}, note)))]);

const shown = (value) => (value === null || value === undefined ? "not set" : typeof value === "string" ? value : JSON.stringify(value));

const row = ([first, ...others]) => el("tr", {}, el("th", { scope: "row" }, first), ...others.map((each) => el("td", {}, each)));

const header = (names) => el("thead", {}, el("tr", {}, ...names.map((name) => el("th", { scope: "col" }, name))));
