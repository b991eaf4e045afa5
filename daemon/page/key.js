// The API key: asked for when the daemon wants one, and kept for this tab alone, until it is closed.

import { dialog } from "./dialogs.js";
import { el } from "./dom.js";

const NAME = "mlxd.key";

export class Key {
  constructor(storage) {
    this.storage = storage;
    this.onChange = () => {};
    this.asking = null;
    /** The key that was refused when nobody gave another one: what asks in passing must not ask again. */
    this.declined = undefined;
  }

  /** The key, or null. */
  get value() {
    return this.storage.getItem(NAME);
  }

  /** Ask for another key than the one that was `refused`; callers at the same time share one dialog. */
  async replace(refused, why) {
    if (this.value !== refused) return;
    if (this.declined === refused) throw new KeyNotGiven();
    this.asking ??= this.#ask(why).finally(() => (this.asking = null));
    try {
      await this.asking;
    } catch (error) {
      this.declined = refused;
      throw error;
    }
  }

  /** Ask for a key now. */
  async change() {
    await (this.asking ??= this.#ask("").finally(() => (this.asking = null)));
  }

  /** Keep it no longer. What it has shown goes with the page, which is to be loaded again. */
  forget() {
    this.storage.removeItem(NAME);
  }

  async #ask(why) {
    const input = el("input", { type: "password", autocomplete: "off", spellcheck: "false", autofocus: true });
    const given = await dialog({
      title: "API key",
      body: [
        el("p", {}, why || "The key is sent with every call of this page."),
        el("label", {}, "Key", input),
        el("p", { class: "hint" }, "It is kept for this tab only. `mlxd key add` makes one."),
      ],
      action: "Use key",
      read: () => {
        const value = input.value.trim();
        if (value === "") throw new Error("Enter a key.");
        if (!/^[\x21-\x7e]+$/.test(value)) throw new Error("A key has letters, digits and signs only.");
        return value;
      },
    });
    if (given === null) throw new KeyNotGiven();
    this.storage.setItem(NAME, given);
    this.onChange();
  }
}

/** The dialog was left without a key. */
export class KeyNotGiven extends Error {
  constructor() {
    super("This daemon asks for an API key, and none was given.");
  }
}
