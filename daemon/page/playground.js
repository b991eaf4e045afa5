// A chat with a model: the model and its parameters, the conversation, sending and stopping.

import { ApiError } from "./api.js";
import { ChatImages } from "./chat_images.js";
import { Message } from "./chat_message.js";
import { ask, newRequestId } from "./chat_stream.js";
import { toast } from "./dialogs.js";
import { attribute, byId, el } from "./dom.js";
import { KeyNotGiven } from "./key.js";

const PARAMETERS = [
  ["temperature", "chat-temperature"],
  ["top_p", "chat-top-p"],
  ["max_tokens", "chat-max-tokens"],
  ["seed", "chat-seed"],
];

export class Playground {
  constructor(api) {
    this.api = api;
    this.messages = [];
    this.models = new Map();
    this.asked = null;
    this.images = new ChatImages();
    this.select = byId("chat-model");
    this.input = byId("chat-input");
    this.shown = byId("chat-messages");
    this.select.addEventListener("change", () => this.#chosen());
    byId("chat-clear").addEventListener("click", () => this.#clear());
    byId("chat-stop").addEventListener("click", () => this.#stop());
    byId("chat-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    this.input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.#send();
    });
  }

  /** Offer the models that this key may chat with. */
  async load() {
    try {
      const { data } = await this.api.get("/v1/models");
      this.models = new Map(data.filter(({ capabilities }) => capabilities.includes("completion")).map((model) => [model.id, model]));
      this.#offer(this.models.size === 0 ? "no model to chat with" : null);
    } catch (error) {
      if (!(error instanceof ApiError || error instanceof TypeError || error instanceof KeyNotGiven)) throw error;
      this.models = new Map();
      this.#offer(error instanceof ApiError ? error.message : "not available");
    }
  }

  #offer(problem) {
    const before = this.select.value;
    const options = problem === null ? [...this.models.keys()].map((id) => el("option", { value: id }, id)) : [el("option", { value: "" }, problem)];
    this.select.replaceChildren(...options);
    if (this.models.has(before)) this.select.value = before;
    this.#chosen();
  }

  #chosen() {
    this.images.allow(this.models.get(this.select.value)?.capabilities.includes("vision") ?? false);
    this.#buttons();
  }

  #buttons() {
    byId("chat-send").disabled = this.asked !== null || this.select.value === "";
    byId("chat-stop").disabled = this.asked === null;
  }

  #clear() {
    this.asked?.aborter.abort();
    this.messages = [];
    this.shown.replaceChildren();
    this.input.focus();
  }

  async #send() {
    const said = this.input.value.trim();
    if (this.asked !== null || this.select.value === "" || (said === "" && this.images.list.length === 0)) return;
    const parameters = this.#parameters();
    if (parameters === null) return;
    this.input.value = "";
    const images = this.images.take();
    const question = new Message("user", { images });
    question.say(said);
    const asked = { role: "user", content: contentOf(said, images) };
    this.messages.push(asked);
    this.shown.append(question.node);
    const content = await this.#answer({ model: this.select.value, messages: this.#conversation(), ...parameters });
    // without an answer it was never said: many templates want the two in turn
    if (content === "") this.messages = this.messages.filter((each) => each !== asked);
    else if (this.messages.includes(asked)) this.messages.push({ role: "assistant", content });
  }

  /** Show the answer as it comes, and give its text. */
  async #answer(body) {
    const answer = new Message("assistant");
    this.shown.append(answer.node);
    this.shown.scrollTop = this.shown.scrollHeight;
    // whoever has scrolled back reads, and stays there
    answer.onRender = keepingTheEnd(this.shown);
    attribute(answer.node, "aria-busy", "true"); // it is read out once it is whole
    answer.wait("waiting");
    const asked = (this.asked = { id: newRequestId(), aborter: new AbortController() });
    this.#buttons();
    const got = { usage: null, timings: null, finish: null };
    try {
      await ask(this.api, body, { id: asked.id, signal: asked.aborter.signal, take: (piece) => take(piece, answer, got) });
      answer.finish(got);
    } catch (error) {
      if (error.name === "AbortError") answer.wait("stopped");
      else answer.fail(error instanceof TypeError ? "The daemon does not answer." : error.message);
    } finally {
      attribute(answer.node, "aria-busy", null);
      this.asked = null;
      this.#buttons();
    }
    return answer.content;
  }

  /** End the answer and keep what there is of it; the stream then ends by itself. */
  async #stop() {
    if (this.asked === null) return;
    const { id, aborter } = this.asked;
    try {
      await this.api.call("DELETE", `/v1/requests/${id}`);
    } catch (error) {
      if (error instanceof ApiError && error.code === "request_not_found") return aborter.abort();
      toast(error.message, { error: true });
    }
  }

  #conversation() {
    const system = byId("chat-system").value.trim();
    return system === "" ? this.messages : [{ role: "system", content: system }, ...this.messages];
  }

  /** The parameters that are given; null when one is none. */
  #parameters() {
    const given = {};
    for (const [name, id] of PARAMETERS) {
      const input = byId(id);
      if (!input.checkValidity()) {
        input.closest("details").open = true;
        input.reportValidity();
        return null;
      }
      if (input.value !== "") given[name] = Number(input.value);
    }
    return given;
  }
}

function take({ waiting, content, reasoning, finish, usage, timings }, answer, got) {
  if (waiting !== undefined) return answer.wait(waiting);
  if (content !== undefined) answer.say(content);
  if (reasoning !== undefined) answer.think(reasoning);
  if (content !== undefined || reasoning !== undefined) answer.wait("");
  got.finish = finish ?? got.finish;
  got.usage = usage ?? got.usage;
  got.timings = timings ?? got.timings;
}

function contentOf(said, images) {
  if (images.length === 0) return said;
  const parts = images.map(({ url }) => ({ type: "image_url", image_url: { url } }));
  return said === "" ? parts : [{ type: "text", text: said }, ...parts];
}

/** Keeps a box that is scrolled to its end there as it grows; called after each growth. */
function keepingTheEnd(box) {
  let height = box.scrollHeight;
  return () => {
    if (box.scrollTop + box.clientHeight >= height - 8) box.scrollTop = box.scrollHeight;
    height = box.scrollHeight;
  };
}
