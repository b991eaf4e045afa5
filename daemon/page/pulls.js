// Downloads: what is fetched and was fetched, and a form for more. Hidden where the daemon has none.

import { guard } from "./access.js";
import { confirm, toast } from "./dialogs.js";
import { attribute, batched, byId, el, Rows, show, style, text } from "./dom.js";
import { bytes, seconds } from "./format.js";
import { KeyNotGiven } from "./key.js";

const ENDED = ["done", "failed", "cancelled"];

export class PullsPanel {
  constructor(store, api) {
    this.store = store;
    this.api = api;
    this.form = byId("pull-form");
    this.rows = new Rows(byId("pulls"), (pull) => String(pull.id), (pull) => this.#row(pull.id));
    store.on(["pulls", "access"], batched(() => this.render()));
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#start();
    });
  }

  render() {
    show(byId("downloads-link"), this.store.pulls !== null);
    const pulls = [...(this.store.pulls?.values() ?? [])].reverse();
    this.rows.render(pulls);
    show(byId("pulls-empty"), pulls.length === 0);
    guard(this.form.querySelector("button"), this.store);
  }

  async #start() {
    const value = (id) => byId(id).value.trim();
    if (value("pull-repo") === "") return byId("pull-repo").focus();
    const optional = { name: value("pull-name"), revision: value("pull-revision") };
    const given = Object.fromEntries(Object.entries(optional).filter(([, each]) => each !== ""));
    await this.#attempt(async () => {
      await this.api.call("POST", "/admin/pull", { repo: value("pull-repo"), ...given });
      this.form.reset();
    });
  }

  async #cancel(id) {
    const { repo } = this.store.pulls.get(id);
    if ((await confirm("Cancel the download?", `${repo}; what was fetched is kept for the next try.`, "Cancel download")) === null) return;
    await this.#attempt(() => this.api.call("DELETE", `/admin/pulls/${encodeURIComponent(id)}`));
  }

  async #attempt(action) {
    try {
      await action();
    } catch (error) {
      if (!(error instanceof KeyNotGiven)) toast(error.message, { error: true });
    }
  }

  #row(id) {
    const name = el("strong");
    const also = el("span", { class: "also" });
    const state = el("span", { class: "state" });
    const progress = el("progress", { "aria-label": "Download" });
    const figures = el("p", { class: "cell" });
    const problem = el("p", { class: "cell error" });
    const cancel = el("button", { type: "button", class: "quiet", data: { needs: "admin" }, onclick: () => this.#cancel(id) }, "Cancel");
    const node = el("li", {}, el("p", { class: "cell name" }, name, also), el("p", { class: "cell" }, state, progress), figures, el("div", { class: "cell actions" }, cancel), problem);
    const update = (pull) => {
      text(name, pull.name ?? pull.repo);
      text(also, [pull.repo, pull.revision].filter(Boolean).join(" @ "));
      text(state, pull.state);
      attribute(state, "data-state", pull.state);
      attribute(state, "data-moves", !ENDED.includes(pull.state));
      attribute(cancel, "aria-label", `Cancel the download of ${pull.repo}`);
      progress.max = Math.max(1, pull.bytes_total ?? 0);
      progress.value = pull.bytes_done ?? 0;
      style(progress, "--done", (progress.value / progress.max).toFixed(3));
      text(figures, figuresText(pull));
      show(progress, !ENDED.includes(pull.state));
      show(cancel, !ENDED.includes(pull.state));
      show(problem, pull.error !== null);
      text(problem, pull.error?.message ?? "");
      guard(cancel, this.store);
    };
    return { node, update };
  }
}

function figuresText({ bytes_done, bytes_total, bytes_per_s, eta_s, files_done, files_total }) {
  const shown = [];
  if (bytes_total) shown.push(`${bytes(bytes_done)} of ${bytes(bytes_total)}`);
  if (files_total) shown.push(`${files_done} of ${files_total} files`);
  if (bytes_per_s) shown.push(`${bytes(bytes_per_s)}/s`);
  if (eta_s !== null && eta_s !== undefined) shown.push(`${seconds(eta_s)} left`);
  return shown.join(" · ");
}
