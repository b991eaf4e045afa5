// One message of the conversation. What a model says is text; only fences of code are told apart.

import { batched, el, show, text } from "./dom.js";
import { number, rate, seconds } from "./format.js";

export class Message {
  constructor(role, { images = [] } = {}) {
    this.role = role;
    this.content = "";
    this.reasoning = "";
    this.status = el("p", { class: "hint", hidden: true });
    this.thought = el("div", { class: "said" });
    this.folded = el("details", { class: "reasoning", hidden: true }, el("summary", {}, "Reasoning"), this.thought);
    this.body = el("div", { class: "said" });
    this.problem = el("p", { class: "problem", role: "alert", hidden: true });
    this.figures = el("p", { class: "timings", hidden: true });
    const pictures = el("p", { class: "pictures" }, ...images.map((image) => el("img", { src: image.url, alt: image.name })));
    const parts = [el("p", { class: "role" }, role), images.length > 0 ? pictures : null, this.status, this.folded, this.body, this.problem, this.figures];
    this.node = el("article", { class: "message", data: { role }, "aria-label": role }, ...parts);
    this.onRender = () => {};
    this.render_soon = batched(() => this.#render());
  }

  say(content) {
    this.content += content;
    this.render_soon();
  }

  think(reasoning) {
    this.reasoning += reasoning;
    this.render_soon();
  }

  /** What it waits for; nothing ends that. */
  wait(what) {
    text(this.status, what);
    show(this.status, what !== "");
  }

  fail(message) {
    this.wait("");
    text(this.problem, message);
    show(this.problem, true);
  }

  /** The times and tokens of an answer, as far as they are known. */
  finish({ usage, timings, finish }) {
    this.wait("");
    const shown = figures(usage, timings, finish);
    text(this.figures, shown);
    show(this.figures, shown !== "");
    this.render_soon();
  }

  #render() {
    fill(this.thought, this.reasoning);
    fill(this.body, this.content);
    show(this.folded, this.reasoning !== "");
    this.onRender();
  }
}

/** Write text with its fenced parts; what has not changed is left alone. */
function fill(container, content) {
  const parts = content.split(/^```/m);
  parts.forEach((part, place) => {
    const isCode = place % 2 === 1;
    let node = container.children[place];
    if (node === undefined) {
      node = isCode ? el("pre", { tabindex: "0" }) : el("div");
      container.append(node);
    }
    text(node, isCode ? part.replace(/^[^\n]*\n?/, "").replace(/\n$/, "") : part.replace(/^\n/, ""));
  });
  while (container.children.length > parts.length) container.lastChild.remove();
}

function figures(usage, timings, finish) {
  const shown = [];
  const timed = [["queue_s", "queue"], ["load_s", "of it load"], ["ttft_s", "first token"]];
  for (const [key, label] of timed) if (timings?.[key]) shown.push(`${label} ${precise(timings[key])}`);
  if (timings?.decode_tps) shown.push(rate(timings.decode_tps));
  if (usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
    shown.push(`${number(usage.prompt_tokens)}${cached > 0 ? ` (${number(cached)} kept)` : ""} + ${number(usage.completion_tokens)} tokens`);
  }
  if (timings?.cancelled) shown.push("stopped");
  else if (finish === "length") shown.push("cut off at the token limit");
  return shown.join(" · ");
}

const precise = (value) => (value < 1 ? `${Math.round(value * 1000)} ms` : seconds(value));
