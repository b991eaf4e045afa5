// Images for the next message: picked, pasted or dropped, and kept as data URLs.

import { toast } from "./dialogs.js";
import { byId, el, show } from "./dom.js";

const TYPES = ["image/png", "image/jpeg", "image/webp", "image/gif"];

export class ChatImages {
  constructor() {
    this.list = [];
    this.isAllowed = false;
    const files = byId("chat-files");
    files.addEventListener("change", async () => {
      await this.add(files.files);
      files.value = "";
    });
    const input = byId("chat-input");
    input.addEventListener("paste", (event) => this.#take(event, event.clipboardData.files));
    input.addEventListener("drop", (event) => this.#take(event, event.dataTransfer.files));
  }

  /** Whether the model that is chosen sees images. */
  allow(isAllowed) {
    this.isAllowed = isAllowed;
    show(byId("chat-attach"), isAllowed);
    if (!isAllowed) this.take();
  }

  /** The images, which are then those of a message. */
  take() {
    const taken = this.list;
    this.list = [];
    this.#render();
    return taken;
  }

  async add(files) {
    for (const file of files) {
      if (!TYPES.includes(file.type)) {
        toast(`${file.name} is no PNG, JPEG, WebP or GIF file.`, { error: true });
        continue;
      }
      try {
        this.list.push({ name: file.name, url: await dataUrl(file) });
      } catch (error) {
        toast(`${file.name} cannot be read: ${error?.message ?? error}`, { error: true });
      }
    }
    this.#render();
  }

  #take(event, files) {
    if (files.length === 0) return;
    event.preventDefault();
    if (this.isAllowed) this.add(files);
    else toast("This model takes no images.", { error: true });
  }

  #render() {
    const items = this.list.map((image) => {
      const remove = el("button", { type: "button", "aria-label": `Remove ${image.name}`, onclick: () => this.#remove(image) }, "×");
      return el("li", {}, el("img", { src: image.url, alt: image.name }), remove);
    });
    byId("chat-images").replaceChildren(...items);
  }

  #remove(image) {
    this.list = this.list.filter((each) => each !== image);
    this.#render();
    byId("chat-input").focus();
  }
}

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(reader.result));
    reader.addEventListener("error", () => reject(reader.error));
    reader.readAsDataURL(file);
  });
}
