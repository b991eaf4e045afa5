// What an operator does with a model. The feed tells what comes of it.

import { explainPath, modelPath } from "./api.js";
import { confirm, dialog, toast } from "./dialogs.js";
import { el } from "./dom.js";
import { bytes } from "./format.js";
import { KeyNotGiven } from "./key.js";
import { describePlan } from "./plan.js";

export class ModelActions {
  constructor(api, store) {
    this.api = api;
    this.store = store;
  }

  load(id) {
    return this.#attempt(() => this.api.call("POST", modelPath(id, "/load"), { wait: false }));
  }

  cancelLoad(id) {
    return this.#attempt(() => this.api.call("DELETE", modelPath(id, "/load")));
  }

  unload(id) {
    return this.#attempt(() => this.#unload(id, "drain"));
  }

  async forceUnload(id) {
    const { leases } = this.store.models.get(id) ?? { leases: 0 };
    const harm = leases === 0 ? "No request uses it now." : `${leases} of its requests will be aborted.`;
    if ((await confirm(`Force ${id} out of memory?`, harm, "Force unload")) === null) return;
    await this.#attempt(() => this.#unload(id, "force"));
  }

  pin(id, pinned) {
    return this.#attempt(() => this.api.call("PATCH", modelPath(id), { pinned }));
  }

  async changeTtl(id) {
    const now = this.store.models.get(id)?.ttl_s ?? null;
    const input = el("input", { value: now === null ? "never" : `${now}s`, autofocus: true, spellcheck: "false" });
    await dialog({
      title: `Time to live of ${id}`,
      body: [
        el("label", {}, "Unload after this time without a request", input),
        el("p", { class: "hint" }, "A duration such as 30s, 10m or 1h, or never."),
      ],
      action: "Change",
      read: () => this.api.call("PATCH", modelPath(id), { ttl: input.value.trim() }),
    });
  }

  async why(id) {
    await this.#attempt(async () => {
      const plan = await this.api.get(explainPath(id));
      await dialog({ title: `If ${id} were asked for now`, body: describePlan(plan) });
    });
  }

  cancelRequest(id) {
    return this.#attempt(() => this.api.call("DELETE", `/admin/requests/${encodeURIComponent(id)}`));
  }

  async #unload(id, mode) {
    const { freed_bytes } = await this.api.call("POST", modelPath(id, "/unload"), { mode });
    toast(`${id} is unloaded; ${bytes(freed_bytes)} came free.`);
  }

  async #attempt(action) {
    try {
      await action();
    } catch (error) {
      if (error instanceof KeyNotGiven) return;
      toast(error instanceof TypeError ? "The daemon does not answer." : error.message, { error: true });
    }
  }
}
