// One model in the list.

import { guard } from "./access.js";
import { attribute, el, show, style, text } from "./dom.js";
import { bytes, countdown, list, rate, seconds } from "./format.js";

const MOVES = ["loading", "draining", "unloading", "queued"];
const RESIDENT = ["ready", "draining", "unloading"];

export function makeModelRow(id, store, actions) {
  const parts = {
    kind: el("span", { class: "tag" }),
    pinned: el("span", { class: "tag pin" }, "pinned"),
    aliases: el("span", { class: "also" }),
    state: el("span", { class: "state" }),
    progress: el("progress", { "aria-label": `Load of ${id}` }),
    loaded: el("span", { class: "also" }),
    memory: el("p", { class: "cell memory", data: { label: "Memory" } }),
    use: el("p", { class: "cell use", data: { label: "Use" } }),
    until: el("p", { class: "cell until", data: { label: "Unload" } }),
    error: el("p", { class: "cell error" }),
  };
  const buttons = makeButtons(id, store, actions);
  const name = el("p", { class: "cell name" }, el("strong", {}, id), parts.kind, parts.pinned, parts.aliases);
  const state = el("p", { class: "cell" }, parts.state, parts.progress, parts.loaded);
  const node = el("li", { data: { model: id } }, name, state, parts.memory, parts.use, parts.until, buttons.node, parts.error);
  const tick = () => {
    if (store.models.has(id)) ticking(parts, store.models.get(id), store.time);
  };
  const update = (model) => {
    fixed(parts, model);
    ticking(parts, model, store.time);
    buttons.update(model);
    attribute(node, "data-state", model.state);
    attribute(node, "data-idle", model.state === "unloaded" && model.queued === 0);
  };
  return { node, update, tick };
}

function fixed(parts, model) {
  text(parts.kind, model.kind);
  show(parts.kind, model.kind !== "text");
  show(parts.pinned, model.pinned);
  text(parts.aliases, model.aliases.length > 0 ? `also ${list(model.aliases)}` : "");
  text(parts.state, model.state);
  attribute(parts.state, "data-state", model.state);
  attribute(parts.state, "data-moves", MOVES.includes(model.state));
  show(parts.progress, model.load !== null);
  if (model.load !== null) {
    parts.progress.max = Math.max(1, model.load.bytes_total);
    parts.progress.value = model.load.bytes_done;
    style(parts.progress, "--done", (model.load.bytes_done / parts.progress.max).toFixed(3));
  }
  text(parts.loaded, loadText(model));
  text(parts.memory, memoryText(model));
  attribute(parts.memory, "title", model.resident_bytes > 0 ? "Weights, KV cache, kept prompt prefixes" : "Weights, when loaded");
  text(parts.use, useText(model));
}

function ticking(parts, model, now) {
  text(parts.until, untilText(model, now));
  show(parts.error, model.error !== null);
  if (model.error !== null) text(parts.error, errorText(model.error, now));
}

function loadText({ load }) {
  if (load === null) return "";
  const eta = load.eta_s === null ? "" : ` · ${seconds(load.eta_s)} left`;
  return `${bytes(load.bytes_done)} of ${bytes(load.bytes_total)}${eta}`;
}

function memoryText(model) {
  if (model.resident_bytes === 0) return bytes(model.weight_bytes);
  const weights = model.resident_bytes - model.kv_bytes - model.prefix_cache_bytes;
  const shown = [bytes(weights)];
  if (model.kv_bytes > 0) shown.push(`KV ${bytes(model.kv_bytes)}`);
  if (model.prefix_cache_bytes > 0) shown.push(`kept ${bytes(model.prefix_cache_bytes)}`);
  return shown.join(" · ");
}

function useText({ engine, leases, queued }) {
  const shown = [];
  if (engine !== null && engine.running > 0) shown.push(`${engine.running} running`);
  if (engine !== null && engine.waiting > 0) shown.push(`${engine.waiting} waiting`);
  if (queued > 0) shown.push(`${queued} queued`);
  if (leases > (engine === null ? 0 : engine.running + engine.waiting)) shown.push(`${leases} in use`);
  if (engine !== null && engine.decode_tps > 0) shown.push(rate(engine.decode_tps));
  return shown.length > 0 ? shown.join(" · ") : engine === null ? "" : "idle";
}

function untilText(model, now) {
  if (model.unload_at !== null) return `unloads in ${countdown(model.unload_at - now)}`;
  if (!RESIDENT.includes(model.state)) return "";
  if (model.pinned) return "stays";
  return model.ttl_s === null ? "until room is needed" : `${seconds(model.ttl_s)} after its last request`;
}

function errorText({ reason, message, attempts, retry_at }, now) {
  const wait = retry_at - now;
  const retry = wait > 0 ? ` Next try in ${countdown(wait)}.` : "";
  return `${reason}: ${message}${attempts > 1 ? ` (${attempts} times)` : ""}.${retry}`.replace("..", ".");
}

function makeButtons(id, store, actions) {
  const button = (label, action, extra = {}) =>
    el("button", { type: "button", class: "quiet", "aria-label": `${label} ${id}`, data: { needs: "admin" }, ...extra, onclick: action }, label);
  const all = {
    load: button("Load", () => actions.load(id)),
    cancel: button("Cancel load", () => actions.cancelLoad(id)),
    unload: button("Unload", () => actions.unload(id)),
    force: button("Force", () => actions.forceUnload(id), { "aria-label": `Force unload ${id}` }),
    pin: button("Pin", () => actions.pin(id, all.pin.textContent === "Pin")),
    ttl: button("TTL", () => actions.changeTtl(id)),
    why: button("Why", () => actions.why(id), { data: { needs: "read" } }),
  };
  const node = el("div", { class: "cell actions" }, ...Object.values(all));
  const update = (model) => {
    const focused = node.contains(document.activeElement) ? document.activeElement : null;
    const moving = ["queued", "loading"].includes(model.state);
    show(all.load, ["unloaded", "failed"].includes(model.state));
    show(all.cancel, moving);
    show(all.unload, model.state === "ready");
    show(all.force, ["ready", "draining"].includes(model.state));
    text(all.pin, model.pinned ? "Unpin" : "Pin");
    attribute(all.pin, "aria-label", `${all.pin.textContent} ${id}`);
    // a button that goes away with the state it was for hands the focus to the next one
    if (focused?.hidden) node.querySelector("button:not([hidden])").focus({ preventScroll: true });
    for (const each of Object.values(all)) if (each.dataset.needs === "admin") guard(each, store);
  };
  return { node, update };
}
