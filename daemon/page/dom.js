// Elements, made and updated without HTML text: what comes from elsewhere is text and nothing else.

/**
 * An element. Properties starting with "on" are listeners, `data` is its dataset, the others are attributes;
 * false and null leave one out. Children are nodes or text.
 */
export function el(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "data") Object.assign(node.dataset, value);
    else attribute(node, name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export const byId = (id) => document.getElementById(id);

/** Set an attribute unless it is so already; false, null and undefined take it away, true leaves it empty. */
export function attribute(node, name, value) {
  if (value === false || value === null || value === undefined) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value === true ? "" : value)) {
    node.setAttribute(name, value === true ? "" : String(value));
  }
}

/** Set the text of an element unless it is so already, so that a selection in it stays. */
export function text(node, value) {
  const wanted = String(value);
  if (node.textContent !== wanted) node.textContent = wanted;
}

export function show(node, visible) {
  if (node.hidden === visible) node.hidden = !visible;
}

/** Set a custom property or a style, by way of the object model, which the content policy allows. */
export function style(node, name, value) {
  if (node.style.getPropertyValue(name) !== value) node.style.setProperty(name, value);
}

/**
 * Keeps the children of a container the same as a list of items, by key: those that stay are updated in place and
 * keep focus and selection.
 */
export class Rows {
  /**
   * @param {Element} container
   * @param {(item: any) => string} keyOf
   * @param {(item: any) => {node: Element, update: (item: any) => void, tick?: () => void}} make
   */
  constructor(container, keyOf, make) {
    this.container = container;
    this.keyOf = keyOf;
    this.make = make;
    this.rows = new Map();
  }

  render(items) {
    const keys = new Set(items.map(this.keyOf));
    for (const [key, row] of this.rows) {
      if (keys.has(key)) continue;
      row.node.remove();
      this.rows.delete(key);
    }
    items.forEach((item, index) => this.#place(item, index));
  }

  /** Let rows show that time goes by. */
  tick() {
    for (const row of this.rows.values()) row.tick?.();
  }

  #place(item, index) {
    const key = this.keyOf(item);
    let row = this.rows.get(key);
    if (row === undefined) {
      row = this.make(item);
      this.rows.set(key, row);
    }
    const there = this.container.children[index] ?? null;
    if (there !== row.node) this.#move(row.node, there);
    row.update(item);
  }

  /** What moves in the document loses the focus. */
  #move(node, before) {
    const focused = node.contains(document.activeElement) ? document.activeElement : null;
    this.container.insertBefore(node, before);
    focused?.focus({ preventScroll: true });
  }
}

/** Calls `render` in the next frame, once for however many calls came before it. */
export function batched(render) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      render();
    });
  };
}
